"""A simulator and a policy joined: input and output transforms, or one line that says why not."""

from collections.abc import Sequence

from rlvla3.errors import UserError
from rlvla3.transforms.api import Chain, Step
from rlvla3.transforms.converting import between
from rlvla3.transforms.expecting import BLANK, Concessions, Expectation, Picture
from rlvla3.transforms.images import CentreCrop, Upright, ValueRange
from rlvla3.transforms.joined import InputTransform, OutputTransform, View
from rlvla3.transforms.meaning import Camera, Meaning, Part, listed, places, total
from rlvla3.transforms.resizing import Resize
from rlvla3.transforms.statistics import Normalise, Statistics
from rlvla3.transforms.vectors import Block, Blocks, Clip, Executed, Pad, PlusState


def compose(
    simulator: Meaning | None,
    policy: Expectation,
    chunk: int,
    *,
    state_statistics: Statistics | None = None,
    action_statistics: Statistics | None = None,
    concessions: Concessions | None = None,
) -> tuple[InputTransform, OutputTransform]:
    """What goes between a simulator and a policy.

    Args:
        simulator: what its fields mean (``SimulatorSpec.meaning``).
        policy: what the policy expects.
        chunk: C, actions executed for one inference.
        state_statistics: of the policy's state parts; None: they are not normalised.
        action_statistics: of its action parts.
        concessions: what is accepted where they do not fit; None: nothing.

    Returns:
        observation → what the network reads, and what the network says → actions of the simulator.

    Raises:
        UserError: they do not fit; the line names the part and what can be done.
    """
    if simulator is None:
        raise UserError(
            "this simulator does not say what its fields mean, so they cannot be matched with what the "
            "policy expects; give its SimulatorSpec a meaning (docs/transforms.md) or use another policy"
        )
    accepted = concessions or Concessions()
    state = simulator.state_parts if policy.state is None else policy.state
    action = simulator.action if policy.action is None else policy.action
    _check(simulator, policy, accepted, (*state, *action))
    inputs = InputTransform(
        views=_views(simulator.cameras, policy, accepted),
        fields=tuple(simulator.state),
        select=_select(simulator.state_parts, state, accepted),
        prepare=_prepare(state, policy, state_statistics),
        size=total(state),
    )
    outputs = OutputTransform(
        pad=_pad("action", total(action), policy.action_width),
        normalise=_normalise("action", action, action_statistics),
        relative=_relative(policy, state, action),
        executed=_executed(chunk, policy),
        convert=_convert(action, simulator.action, accepted),
        real=_real(action, simulator.action),
    )
    return inputs, outputs


def _check(simulator: Meaning, policy: Expectation, accepted: Concessions, parts: Sequence[Part]) -> None:
    """Refuse concessions about things that nobody has."""
    known = {part.name for part in (*parts, *simulator.state_parts, *simulator.action)}
    for name in ("zeros", "held", "dropped", "frames"):
        for given in getattr(accepted, name):
            if given not in known:
                raise UserError(
                    f"concessions.{name} names {given!r}, which neither side has; parts are "
                    f"{', '.join(sorted(known))}"
                )
    roles = {camera.role for camera in simulator.cameras}
    wanted = roles if policy.cameras is None else set(policy.cameras)
    for role, shown in accepted.cameras.items():
        if role not in wanted or shown not in (*roles, BLANK):
            raise UserError(
                f"concessions.cameras.{role} = {shown}: the policy looks through {_names(wanted)}, and "
                f"the simulator has {_names(roles)} or {BLANK}"
            )


def _names(roles: set[str]) -> str:
    return ", ".join(sorted(roles)) or "none"


# --- pictures --------------------------------------------------------------------------------


def _views(cameras: Sequence[Camera], policy: Expectation, accepted: Concessions) -> tuple[View, ...]:
    by_role = {camera.role: camera for camera in cameras}
    wanted = tuple(by_role) if policy.cameras is None else policy.cameras
    return tuple(_view(role, by_role, policy.picture, accepted) for role in wanted)


def _view(role: str, by_role: dict[str, Camera], picture: Picture | None, accepted: Concessions) -> View:
    shown = role if role in by_role else accepted.cameras.get(role, "")
    if shown in by_role:
        camera = by_role[shown]
        return View(role=role, field=camera.field, steps=_pixels(camera, picture), blank=(0, 0))
    if shown != BLANK:
        others = "".join(f" or {other}" for other in by_role)
        raise UserError(
            f"the policy looks through a camera {role!r}, which the simulator has not (it has "
            f"{_names(set(by_role))}); add it in the simulator's settings, or set "
            f"concessions.cameras.{role} to {BLANK}{others}"
        )
    if picture is None:
        raise UserError(
            f"concessions.cameras.{role} = {BLANK}: the policy does not say how large a picture is; show "
            "another camera in its place"
        )
    size = (picture.height, picture.width)
    return View(role=role, field="", steps=Chain((ValueRange(picture.range),)), blank=size)


def _pixels(camera: Camera, picture: Picture | None) -> Chain:
    upright = Upright(camera.orientation)
    if picture is None:
        return Chain((upright,))
    height, width = (max(1, round(side * picture.crop)) for side in (camera.height, camera.width))
    crop = CentreCrop(height=camera.height, width=camera.width, inner_height=height, inner_width=width)
    resize = Resize(
        height=height,
        width=width,
        new_height=picture.height,
        new_width=picture.width,
        filter=picture.filter,
        antialias=picture.antialias,
        keep_ratio=picture.keep_ratio,
        place=picture.place,
        pad=picture.pad,
    )
    return Chain((upright, crop, resize, ValueRange(picture.range)))


# --- the state -------------------------------------------------------------------------------


def _select(given: Sequence[Part], wanted: Sequence[Part], accepted: Concessions) -> Step:
    """The simulator's state → the policy's parts in the policy's order."""
    missing = [part for part in wanted if part.name not in places(given)]
    for part in missing:
        if part.name not in accepted.zeros:
            raise UserError(
                f"the policy reads the state part {part.name!r}, which the simulator has not (it has "
                f"{listed(given)}); name it in concessions.zeros to read zeros"
            )
    return _blocks(given, wanted, accepted)


def _prepare(state: Sequence[Part], policy: Expectation, statistics: Statistics | None) -> Chain:
    steps: list[Step] = list(_normalise("state", state, statistics).steps)
    if policy.clip_state:
        steps.append(Clip(-policy.clip_state, policy.clip_state))
    return Chain((*steps, _pad("state", total(state), policy.state_width)))


def _normalise(what: str, parts: Sequence[Part], statistics: Statistics | None) -> Chain:
    if statistics is None:
        return Chain()
    if statistics.size != total(parts):
        raise UserError(
            f"statistics of the {what} are of {statistics.size} numbers, its parts ({listed(parts)}) have "
            f"{total(parts)}; choose the statistics that belong to these weights"
        )
    return Chain((Normalise(statistics),))


def _pad(what: str, size: int, width: int) -> Pad:
    if width and width < size:
        raise UserError(
            f"the policy's {what} holds {width} numbers, this simulator's has {size}; choose a policy with a "
            "greater width, or fewer parts"
        )
    return Pad(size, width or size)


# --- actions ---------------------------------------------------------------------------------


def _convert(said: Sequence[Part], needed: Sequence[Part], accepted: Concessions) -> Step:
    """The policy's action parts → the simulator's."""
    for part in needed:
        if part.name not in places(said) and part.name not in accepted.held:
            raise UserError(
                f"the simulator needs the action part {part.name!r}, which the policy does not say (it says "
                f"{listed(said)}); name it in concessions.held to hold it at rest ({part.rest:g})"
            )
    for part in said:
        if part.name not in places(needed) and part.name not in accepted.dropped:
            raise UserError(
                f"the policy says the action part {part.name!r}, which the simulator cannot do (it has "
                f"{listed(needed)}); name it in concessions.dropped to ignore it"
            )
    return _blocks(said, needed, accepted)


def _blocks(source: Sequence[Part], target: Sequence[Part], accepted: Concessions) -> Step:
    if tuple(source) == tuple(target):
        return Chain()
    given = places(source)
    blocks = [
        Block(source=given[name][1], target=place, step=between(given[name][0], part, accepted))
        for name, (part, place) in places(target).items()
        if name in given
    ]
    return Blocks(blocks=tuple(blocks), source_rest=_rest(source), target_rest=_rest(target))


def _rest(parts: Sequence[Part]) -> tuple[float, ...]:
    return tuple(number for part in parts for number in (part.rest,) * part.size)


def _real(said: Sequence[Part], needed: Sequence[Part]) -> tuple[bool, ...]:
    """Which of the policy's numbers reach the simulator."""
    return tuple(real for part in said for real in (part.name in places(needed),) * part.size)


def _executed(chunk: int, policy: Expectation) -> Executed:
    horizon = policy.horizon or chunk
    if not 1 <= chunk <= horizon:
        raise UserError(
            f"simulator.chunk = {chunk}: the policy says {horizon} actions at once; give 1 to {horizon}"
        )
    return Executed(horizon, chunk)


def _relative(policy: Expectation, state: Sequence[Part], action: Sequence[Part]) -> PlusState | None:
    if not policy.relative:
        return None
    pairs: list[tuple[int, int]] = []
    for name, added in policy.relative:
        found, base = places(action).get(name), places(state).get(added)
        if found is None or base is None or found[0].size != base[0].size:
            raise UserError(
                f"the policy says {name!r} as a difference to {added!r}, but its action has {listed(action)} "
                f"and its state {listed(state)}; both must be there with equal sizes; correct the expectation"
            )
        numbers = zip(range(found[1].start, found[1].stop), range(base[1].start, base[1].stop), strict=True)
        pairs += numbers
    return PlusState(tuple(pairs))
