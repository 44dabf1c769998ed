"""Pictures against Pillow and torch, by hand, and back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlvla3.transforms.images import CentreCrop, Upright, ValueRange
from rlvla3.transforms.resizing import Resize, resize, taps

SIZES = [(480, 640, 224, 224), (256, 256, 224, 224), (84, 84, 224, 224), (37, 91, 64, 20), (100, 10, 7, 33)]
side = st.integers(1, 40)
steady = settings(max_examples=40, deadline=None)


def noise(height, width, seed=0, batch=()):
    return np.random.default_rng(seed).integers(0, 256, (*batch, height, width, 3), np.uint8)


def smooth(height, width):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([np.sin(x / 9) * 100 + 128, np.cos(y / 7) * 100 + 128, (x + y) % 256], -1).astype(
        np.uint8
    )


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos3"])
@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
@pytest.mark.parametrize("picture", [noise, smooth])
def test_as_pillow_does_it_to_one_level(picture, height, width, new_height, new_width, filter):
    resample = {"bilinear": "BILINEAR", "bicubic": "BICUBIC", "lanczos3": "LANCZOS"}[filter]
    # Pillow holds bytes within 0..255 between its two passes too: half the contrast stays inside.
    frame = picture(height, width) // 2 + 64
    wanted = Image.fromarray(frame).resize((new_width, new_height), Image.Resampling[resample])
    found = resize(frame, new_height, new_width, filter)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - np.asarray(wanted).astype(int)).max() <= 1


@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
@pytest.mark.parametrize("antialias", [True, False])
def test_bilinear_as_torch_does_it(height, width, new_height, new_width, antialias):
    frame = noise(height, width).astype(np.float32)
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(frame).double().permute(2, 0, 1)[None],
        (new_height, new_width),
        mode="bilinear",
        align_corners=False,
        antialias=antialias,
    )
    found = resize(frame, new_height, new_width, "bilinear", antialias)
    np.testing.assert_allclose(found, wanted[0].permute(1, 2, 0).numpy(), atol=1e-4)


@pytest.mark.parametrize(("size", "target"), [(480, 224), (91, 20), (64, 64), (8, 3), (7, 7)])
def test_area_as_torch_does_it_for_whole_ratios_and_as_a_mean_otherwise(size, target):
    frame = noise(size, size).astype(np.float32)
    found = resize(frame, target, target, "area")
    if size % target == 0:
        wanted = torch.nn.functional.interpolate(
            torch.from_numpy(frame).permute(2, 0, 1)[None], (target, target), mode="area"
        )
        np.testing.assert_allclose(found, wanted[0].permute(1, 2, 0).numpy(), atol=1e-3)
    np.testing.assert_allclose(found.mean(), frame.mean(), rtol=1e-4)


def test_area_by_hand():
    """Three pixels onto two: each covers one and a half."""
    frame = np.float32([0, 30, 90]).reshape(1, 3, 1).repeat(3, -1)
    np.testing.assert_allclose(resize(frame, 1, 2, "area")[0, :, 0], [10, 70], rtol=1e-6)


def test_nearest_by_hand():
    frame = np.arange(4, dtype=np.uint8).reshape(1, 4, 1).repeat(3, -1)
    np.testing.assert_array_equal(resize(frame, 1, 2, "nearest")[0, :, 0], [1, 3])
    np.testing.assert_array_equal(resize(frame[:, :2], 1, 4, "nearest")[0, :, 0], [0, 0, 1, 1])


@steady
@given(side, side, st.sampled_from(["bilinear", "bicubic", "lanczos3", "area", "nearest"]), st.booleans())
def test_weights_add_up_to_one_and_stay_inside(size, target, filter, antialias):
    indices, weights = taps(size, target, filter, antialias)
    assert indices.shape == weights.shape and indices.shape[1] == target
    assert indices.min() >= 0 and indices.max() < size
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-6)


@steady
@given(side, side, side, side, st.booleans(), st.sampled_from(["centre", "bottom_right"]))
def test_padding_is_undone_and_a_plain_picture_survives(height, width, new_height, new_width, keep, place):
    step = Resize(
        height=height,
        width=width,
        new_height=new_height,
        new_width=new_width,
        keep_ratio=keep,
        place=place,
        pad=7,
    )
    plain = np.full((2, height, width, 3), 99, np.uint8)
    made = step.apply(plain)
    assert made.shape == (2, new_height, new_width, 3)
    assert set(np.unique(made)) <= {7, 99} and (made == 99).any()
    np.testing.assert_array_equal(step.invert(made), plain)


def test_pictures_lie_where_they_should():
    frame = noise(480, 640)
    centred = Resize(height=480, width=640, new_height=224, new_width=224).apply(frame)
    assert not centred[:28].any() and not centred[-28:].any() and centred[28].any() and centred[195].any()
    low = Resize(height=480, width=640, new_height=224, new_width=224, place="bottom_right").apply(frame)
    assert not low[:56].any()
    np.testing.assert_array_equal(low[56:], centred[28:196])
    padded = Resize(height=100, width=256, new_height=224, new_width=224, pad=255).apply(noise(100, 256))
    assert (padded[:68] == 255).all() and (padded[156:] == 255).all(), "87 rows: 68 above, 69 below"


def test_a_smooth_picture_comes_back_nearly():
    frame = smooth(240, 240)[..., :1].repeat(3, -1)
    step = Resize(height=240, width=240, new_height=224, new_width=224)
    assert np.abs(step.invert(step.apply(frame)).astype(int) - frame.astype(int)).mean() < 1


@steady
@given(side, side, st.sampled_from(["upright", "upside_down", "flipped"]))
def test_turning_is_its_own_inverse(height, width, orientation):
    step, frames = Upright(orientation), noise(height, width, batch=(2,))
    np.testing.assert_array_equal(step.invert(step.apply(frames)), frames)
    corner = {"upright": (0, 0), "upside_down": (-1, -1), "flipped": (-1, 0)}[orientation]
    np.testing.assert_array_equal(step.apply(frames)[:, 0, 0], frames[:, *corner])


@steady
@given(side, side, st.data())
def test_a_crop_keeps_the_middle_and_puts_it_back(height, width, data):
    inner = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    step = CentreCrop(height=height, width=width, inner_height=inner[0], inner_width=inner[1])
    frames = noise(height, width, batch=(2,))
    cropped = step.apply(frames)
    assert cropped.shape == (2, *inner, 3)
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    np.testing.assert_array_equal(cropped[:, 0, 0], frames[:, top, left])
    back = step.invert(cropped)
    np.testing.assert_array_equal(step.apply(back), cropped)
    assert back.sum() == cropped.sum(), "all around it is black"


@pytest.mark.parametrize("target", ["bytes", "unit", "symmetric"])
def test_every_byte_comes_back(target):
    step, every = ValueRange(target), np.arange(256, dtype=np.uint8).reshape(1, 1, 256, 1).repeat(3, -1)
    made = step.apply(every)
    ends = {"bytes": (0, 255), "unit": (0, 1), "symmetric": (-1, 1)}[target]
    assert (made.min(), made.max()) == ends
    np.testing.assert_array_equal(step.invert(made), every)
    np.testing.assert_array_equal(step.invert(made.astype(np.float64)), every)


def test_numbers_outside_the_range_are_held():
    np.testing.assert_array_equal(ValueRange("symmetric").invert(np.float32([-3, 9])), [0, 255])


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"frames must be \[..., 4, 5, 3\], is \[5, 4, 3\]"):
        Resize(height=4, width=5, new_height=2, new_width=2).apply(noise(5, 4))
    with pytest.raises(ValueError, match=r"frames must be \[..., 4, 5, 3\]"):
        CentreCrop(height=4, width=5, inner_height=1, inner_width=1).apply(noise(5, 4))
    with pytest.raises(ValueError, match="a crop of 5x1 must lie within 4x5"):
        CentreCrop(height=4, width=5, inner_height=5, inner_width=1)
    with pytest.raises(ValueError, match="sizes must be 1 or more"):
        Resize(height=0, width=5, new_height=2, new_width=2)
    with pytest.raises(ValueError, match="frames must be uint8, are float64"):
        ValueRange("unit").apply(np.zeros((2, 2, 3)))
    for wrong in (lambda: Upright("flipped").apply(np.zeros(3)), lambda: resize(np.zeros(3), 1, 1, "area")):
        with pytest.raises(ValueError, match=r"frames must be \[..., H, W, 3\]"):
            wrong()
