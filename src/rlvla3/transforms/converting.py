"""One part made into another: units, rotation forms, gripper conventions."""

from rlvla3.errors import UserError
from rlvla3.transforms.api import Chain, Step
from rlvla3.transforms.expecting import Concessions
from rlvla3.transforms.grippers import Shares, regrip
from rlvla3.transforms.meaning import Gripper, Numbers, Part, Rotation, Switch
from rlvla3.transforms.rotations import Rotate
from rlvla3.transforms.vectors import Rescale


def between(source: Part, target: Part, concessions: Concessions) -> Step:
    """The step from a part's numbers to the numbers of the part of the same name on the other side.

    Raises:
        UserError: they are different things, of different sizes, or along different axes.
    """
    frames = {source.frame, target.frame} - {""}
    if len(frames) > 1 and source.name not in concessions.frames:
        raise UserError(
            f"part {source.name!r} is along the axes of the {source.frame} on one side and of the "
            f"{target.frame} on the other; choose a controller with the same axes, or name it in "
            "concessions.frames"
        )
    if isinstance(source, Rotation) and isinstance(target, Rotation):
        return Rotate(
            source=source.form, target=target.form, source_scale=source.scale, target_scale=target.scale
        )
    ends = Gripper | Switch
    if isinstance(source, ends) and isinstance(target, ends) and type(source) is type(target):
        threshold = source.threshold if target.threshold is None else target.threshold
        return regrip(_shares(source), _shares(target), threshold)
    if isinstance(source, Numbers) and isinstance(target, Numbers) and source.size == target.size:
        return Chain() if source.scale == target.scale else Rescale(source.scale / target.scale)
    raise UserError(
        f"part {source.name!r} is {type(source).__name__.lower()} {source.words()} on one side and "
        f"{type(target).__name__.lower()} {target.words()} on the other; give the parts names of their own, "
        "or mend the wrong one"
    )


def _shares(part: Gripper | Switch) -> Shares:
    if isinstance(part, Switch):
        return Shares(open=(part.on,), closed=(part.off,))
    return Shares(open=part.open, closed=part.closed)
