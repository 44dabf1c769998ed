"""What cannot be meant is refused in one line when it is declared, before anything is joined or run."""

import math
import re
from functools import partial

import msgspec
import pytest

from rlvla3.errors import UserError
from rlvla3.transforms.api import Chain
from rlvla3.transforms.expecting import Expectation, Picture
from rlvla3.transforms.grippers import Binarise, Fingers, Shares
from rlvla3.transforms.images import CentreCrop, Upright, ValueRange
from rlvla3.transforms.meaning import Camera, Gripper, Meaning, Numbers, Rotation, Switch
from rlvla3.transforms.resizing import Resize
from rlvla3.transforms.rotations import Rotate
from rlvla3.transforms.statistics import Statistics
from rlvla3.transforms.vectors import Block, Blocks, Clip, Executed, Pad, PlusState, Rescale

MOVE, TURN = Numbers(name="move", size=3), Rotation(name="turn", form="matrix")
FRONT = Camera(field="image", role="front", height=8, width=8)
resized = partial(Resize, height=8, width=8, new_height=4, new_width=4)


def meaning(**changes):
    return Meaning(**({"cameras": (FRONT,), "action": (MOVE,)} | changes))


def blocks(*runs):
    made = tuple(Block(source=slice(*source), target=slice(*target), step=Chain()) for source, target in runs)
    return Blocks(blocks=made, source_rest=(0.0,) * 3, target_rest=(0.0,) * 3)


PARTS = [
    (partial(Numbers, name="", size=1), "part '': must have a name"),
    (partial(Numbers, name="a", size=0), "part 'a': size must be at least 1, it is 0"),
    (partial(Numbers, name="a", size=1, scale=0.0), "scale must be a finite number other than 0, it is 0"),
    (partial(Numbers, name="a", size=1, scale=math.inf), "other than 0, it is inf"),
    (partial(Numbers, name="a", size=1, frame="tol"), "frame must be '', 'base', 'tool', it is 'tol'"),
    (partial(Numbers, name="a", size=1, rest=math.nan), "rest must be finite, it is nan"),
    (partial(Rotation, name="a", form="euler"), "part 'a': form must be 'axis_angle', 'quaternion_wxyz'"),
    (partial(Rotation, name="a", form="matrix", scale=0.0), "scale must be a finite number other than 0"),
    (partial(Gripper, open=(1.0,), closed=(1.0,)), "open (1.0,) and closed (1.0,) must be equally many"),
    (partial(Gripper, open=(1.0, 0.0), closed=(0.0,)), "must be equally many numbers that differ"),
    (partial(Gripper, open=(), closed=()), "must be equally many numbers that differ"),
    (partial(Gripper, open=(math.inf,), closed=(0.0,)), "each number of open and closed must be finite"),
    (partial(Gripper, open=(1,), closed=(0,), threshold=2), "threshold must be a share from 0 to 1, it is 2"),
    (partial(Switch, name="a", on=1.0, off=1.0), "part 'a': on and off must differ, they are 1"),
]
WHOLE = [
    (partial(Camera, field="", role="front", height=1, width=1), "must have a field and a role"),
    (partial(Camera, field="x", role="front", height=0, width=1), "camera 'front': height and width must be"),
    (
        partial(Camera, field="x", role="top", height=1, width=1, orientation="left"),
        "orientation must be 'upright', 'upside_down', 'flipped', it is 'left'",
    ),
    (partial(meaning, cameras=(FRONT, FRONT)), "cameras must differ, they are front, front"),
    (partial(meaning, state={"image": (MOVE,)}), "meaning: fields must differ, they are image, image"),
    (partial(meaning, state={"a": (MOVE,), "b": (MOVE,)}), "state parts must differ, they are move, move"),
    (partial(meaning, action=(MOVE, MOVE)), "action parts must differ, they are move, move"),
    (partial(Picture, height=0, width=8), "picture: height and width must be at least 1, they are 0 and 8"),
    (partial(Picture, height=8, width=8, crop=0.0), "crop must be a share above 0 and up to 1, it is 0"),
    (partial(Picture, height=8, width=8, filter="cubic"), "filter must be 'bilinear', 'bicubic'"),
    (partial(Picture, height=8, width=8, range="byte"), "range must be 'bytes', 'unit', 'symmetric'"),
    (partial(Picture, height=8, width=8, place="left"), "place must be 'centre', 'bottom_right'"),
    (partial(Picture, height=8, width=8, pad=256), "pad must be a byte, it is 256"),
    (partial(Expectation, horizon=-1), "expectation: horizon must be 0 or more, it is -1"),
    (partial(Expectation, clip_state=math.inf), "clip_state must be finite, it is inf"),
    (partial(Expectation, cameras=("front", "front")), "cameras must differ, they are front, front"),
    (partial(Expectation, state=(MOVE, MOVE)), "state parts must differ, they are move, move"),
    (partial(Expectation, state=(MOVE,), state_width=2), "state_width must be 0 or at least 3, its parts'"),
    (
        partial(Expectation, action=(TURN,), action_width=8),
        "action_width must be 0 or at least 9, its parts'",
    ),
    (partial(Expectation, action=(MOVE,), relative=(("hop", "b"),)), "it pairs 'hop' with 'b'"),
    (
        partial(Expectation, action=(MOVE,), state=(TURN,), relative=(("move", "turn"),)),
        "relative must pair action and state parts of equal sizes that are there, it pairs",
    ),
    (partial(Expectation, relative=(("a", "b"), ("a", "c"))), "action parts of relative must differ"),
]
STEPS = [
    (partial(Rescale, 0.0), "factor must be a finite number other than 0, it is 0"),
    (partial(blocks, ((0, 2), (0, 2)), ((1, 3), (2, 3))), "source of blocks: runs must lie within 3 numbers"),
    (partial(blocks, ((0, 1), (2, 4))), "target of blocks: runs must lie within 3 numbers and not over one"),
    (partial(Pad, -1, 3), "-1 numbers do not fit into a width of 3"),
    (partial(Clip, 1.0, 1.0), "low must be below high, they are 1 and 1"),
    (partial(Executed, 4, 5), "a chunk of 5 must be 1 to 4"),
    (partial(PlusState, ((0, 0), (0, 1))), "each number of the action once"),
    (partial(PlusState, ((0, -1),)), "pairs must be of 0 or more"),
    (partial(Shares, open=(1.0,), closed=(1.0,)), "shares: open (1.0,) and closed (1.0,) must be"),
    (partial(Fingers, 0, 1), "fingers must be 1 or more, are 0 and 1"),
    (partial(Binarise, 1.5), "threshold must be a share from 0 to 1, it is 1.5"),
    (partial(Upright, "left"), "orientation must be 'upright'"),
    (partial(ValueRange, "byte"), "range must be 'bytes', 'unit', 'symmetric', it is 'byte'"),
    (partial(CentreCrop, height=4, width=4, inner_height=5, inner_width=4), "must lie within 4x4"),
    (partial(Rotate, source="euler", target="matrix"), "source of a rotation: form must be 'axis_angle'"),
    (partial(Rotate, source="matrix", target="matrix", target_scale=0.0), "target of a rotation: scale must"),
    (partial(resized, filter="cubic"), "filter must be 'bilinear'"),
    (partial(resized, place="left"), "place must be 'centre'"),
    (partial(resized, pad=-1), "pad must be a byte, it is -1"),
]


@pytest.mark.parametrize(
    ("build", "said"), [pytest.param(*case, id=case[1]) for case in PARTS + WHOLE + STEPS]
)
def test_what_cannot_be_meant_is_refused_when_it_is_built(build, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        build()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "mean"}, "there is no mode of statistics 'mean'; modes are mean_std, quantile, min_max"),
        ({"epsilon": -1.0}, "epsilon of statistics must be 0 or more, it is -1"),
        ({"second": (1.0, -1.0)}, "statistics of mode mean_std: std is below 0 in dimensions [1]"),
        ({"mode": "quantile", "second": (1.0, -1.0)}, "q99 is below q01 in dimensions [1]; take the numbers"),
        ({"mode": "min_max", "second": (-1.0, 1.0)}, "max is below min in dimensions [0]"),
        ({"first": (0.0,)}, "need equally many numbers everywhere"),
        ({"first": (0.0, math.nan)}, "must be finite"),
    ],
)
def test_statistics_that_contradict_themselves_are_refused(changes, said):
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        Statistics(**({"mode": "mean_std", "first": (0.0, 0.0), "second": (1.0, 1.0)} | changes))
    assert "\n" not in str(refused.value)


def test_what_another_process_sends_is_checked_too():
    text = msgspec.json.encode(MOVE).replace(b'"size":3', b'"size":0')
    with pytest.raises(msgspec.ValidationError, match="part 'move': size must be at least 1, it is 0"):
        msgspec.json.decode(text, type=Numbers)


def test_what_the_simulator_says_is_left_to_the_joining():
    Expectation(relative=(("move", "place"),), state_width=2)
