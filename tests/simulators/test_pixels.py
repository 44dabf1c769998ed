import numpy as np
import pytest

from rlvla3.simulators.pixels import as_bytes, even, shrink


def test_every_pixel_is_the_mean_of_its_area():
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[0, 0] = 200
    picture[2:, 2:] = (10, 20, 30)
    expected = np.array([[[50, 50, 50], [0, 0, 0]], [[0, 0, 0], [10, 20, 30]]], np.uint8)
    np.testing.assert_array_equal(shrink(picture, 2), expected)


def test_areas_need_not_be_whole_pixels():
    # Three rows become two: each covers one and a half, so weights are 2/3 and 1/3.
    picture = np.array([0, 90, 240], np.uint8)[:, None, None] * np.ones((1, 2, 3), np.uint8)
    np.testing.assert_array_equal(shrink(picture, 2)[:, 0, 0], [30, 190])


def test_a_line_thinner_than_a_pixel_stays():
    picture = np.zeros((680, 680, 3), np.uint8)
    picture[340:350] = 255
    small = shrink(picture, 68)
    assert small[34].min() == 255 and small[[33, 35]].max() == 0
    assert shrink(picture, 34)[17].min() == 128


def test_a_picture_of_the_size_is_copied_and_a_small_one_repeated():
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    same = shrink(picture, 2)
    np.testing.assert_array_equal(same, picture)
    assert not np.shares_memory(same, picture)
    np.testing.assert_array_equal(shrink(picture, 4), picture.repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(
    ("array", "settings", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), {}, (2, 3, 3)),
        (np.full((2, 3, 1), 7, np.uint8), {}, (2, 3, 3)),
        (np.full((2, 3, 4), 7, np.uint8), {}, (2, 3, 3)),
        (np.full((3, 2, 5), 7, np.uint8), {"channels_first": True}, (2, 5, 3)),
        (np.full((2, 3, 3), 7 / 255, np.float32), {"scale": 255}, (2, 3, 3)),
        (np.full((2, 3, 3), 3.5), {"scale": 2}, (2, 3, 3)),
    ],
)
def test_kinds_of_pictures(array, settings, expected):
    picture = as_bytes(array, **settings)
    assert picture.dtype == np.uint8 and picture.shape == expected and (picture == 7).all()


def test_scaled_numbers_stay_within_bytes():
    scaled = as_bytes(np.array([[-1.0, 0.5, 2.0]]), scale=255)
    np.testing.assert_array_equal(scaled[0, :, 0], [0, 128, 255])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3, 3)), "needs a scale"),
        (np.zeros((2, 3, 5), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((2, 3, 3, 3), np.uint8), "1, 3 or 4 channels"),
    ],
)
def test_what_is_no_picture(array, message):
    with pytest.raises(ValueError, match=message):
        as_bytes(array)


def test_videos_get_even_pictures():
    picture = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    widened = even(picture)
    assert widened.shape == (4, 6, 3)
    np.testing.assert_array_equal(widened[:3, :5], picture)
    np.testing.assert_array_equal(widened[3], widened[2])
    assert even(widened) is widened
