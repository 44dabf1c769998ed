"""From an environment's own observations to the fields that policies read."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.plugins import USERS_FAULTS, a_type, in_words
from rlvla3.settings import Settings
from rlvla3.simulators.api import Observation
from rlvla3.simulators.pixels import as_bytes, shrink
from rlvla3.simulators.tasks import differing

STATE = "proprioception"
"""The field that holds everything that is not a picture."""
_RESERVED = ("task", "elapsed")
"""Fields that every policy is given besides."""
_CALL = "()"
_NO_PICTURES = ("reset()", "step()", "close()")


class ImageSource(Settings):
    """Where an image field comes from."""

    source: str
    """Entry of the observation, of a nested one as ``a/b``, empty for all of it; or ``name()``: the
    environment's method of that name, called only when the picture is used (``render()``)."""
    size: int = Field(default=0, ge=0, le=4096)
    """Pixels of a side of the square that it is resized to, by area; 0: as it is."""
    channels_first: bool = False
    """Whether the channels are the first dimension and not the last."""
    scale: float = Field(default=0.0, ge=0)
    """What its numbers are multiplied by to be 0…255 (255 for numbers in [0, 1]); 0: they are bytes."""


class ObservationSettings(Settings):
    """Which entries of the observation make which fields; without any of it every entry is one."""

    images: dict[str, str | ImageSource] = Field(default_factory=dict)
    """Image fields by name: the source, or a group with ``source`` and what is done to it."""
    state: tuple[str, ...] = ()
    """Entries that are packed, in this order, into the field ``proprioception``."""
    instruction: str = ""
    """Entry that holds the instruction as text, always the same one; empty: as ``instruction`` says."""

    @field_validator("state")
    @classmethod
    def _entries_differ(cls, state: tuple[str, ...]) -> tuple[str, ...]:
        return differing("state", state)

    @model_validator(mode="after")
    def _whole(self) -> "ObservationSettings":
        for name, image in self.sources.items():
            if image.source in _NO_PICTURES:
                raise ValueError(
                    f"images: {name!r} cannot come from {image.source}, which changes the environment; name "
                    "an entry of the observation, or a method that draws, such as render()"
                )
            if name in (*_RESERVED, STATE) or not name.isidentifier():
                raise ValueError(
                    f"images: {name!r} cannot be the name of a field (it is taken, or no name of letters, "
                    "digits and _); choose another, such as image"
                )
        if self.instruction and not (self.images or self.state):
            raise ValueError("instruction alone is no observation; name images, state or both as well")
        return self

    @property
    def chosen(self) -> bool:
        """Whether entries are chosen at all."""
        return bool(self.images or self.state)

    @property
    def sources(self) -> dict[str, ImageSource]:
        """Every image field's source."""
        return {n: s if isinstance(s, ImageSource) else ImageSource(source=s) for n, s in self.images.items()}


def leaves(space: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All entries of a space with their paths, nested ones as ``a/b``; the path of a plain space is empty."""
    inner = getattr(space, "spaces", None)
    if inner is None:
        yield prefix, space
        return
    items = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    for key, part in items:
        yield from leaves(part, f"{prefix}/{key}" if prefix else str(key))


def entry(raw: Any, path: str) -> Any:
    """The entry of an observation that ``path`` names."""
    for key in path.split("/") if path else ():
        raw = raw[int(key)] if isinstance(raw, tuple) else raw[key]
    return raw


class Transform:
    """The fields of one environment's observations.

    Args:
        env: the environment; methods that sources name are called on it.
        settings: which entries make which fields.
        rendered: pixels of a side of the additional field ``image``, the environment's own picture; 0: none.
        what: the setting that names the environment, for messages.

    Raises:
        UserError: an entry that is not there, or that is no numbers.
    """

    def __init__(self, env: Any, settings: ObservationSettings, rendered: int, what: str) -> None:
        self._env = env
        self._what = what
        self._spaces = dict(leaves(env.observation_space))
        self._instruction = settings.instruction
        self._sources = settings.sources
        self._state = settings.state
        self._each: dict[str, str] = {}
        """Fields that are an entry each, by name."""
        if not settings.chosen:
            self._take_each()
        if rendered:
            self._sources["image"] = ImageSource(source="render()", size=rendered)
        self._check()

    def _take_each(self) -> None:
        for path, space in self._spaces.items():
            name = path or ("image" if _is_image(space) else STATE)
            if name in _RESERVED:
                raise UserError(
                    f"{self._what}: the observation's entry {name!r} has a name that is taken; "
                    "name entries with simulator.options.observation.images and .state"
                )
            if _is_image(space):
                self._sources[name] = ImageSource(source=path)
            elif type(space).__name__ != "Text":
                self._each[name] = path

    def _check(self) -> None:
        named = [s.source for s in self._sources.values() if not s.source.endswith(_CALL)]
        texts = [self._instruction] if self._instruction else []
        for path in (*named, *self._state, *self._each.values(), *texts):
            if path not in self._spaces:
                raise UserError(
                    f"{self._what}: simulator.options.observation names {path!r}, which the environment's "
                    f"observations do not have; they have {self._listed()}"
                )
        for path in (*self._state, *self._each.values()):
            if not _is_numbers(self._spaces[path]):
                raise UserError(
                    f"{self._what}: the observation's entry {path!r} is {self._spaces[path]}, which is no "
                    "vector of numbers; leave it out of simulator.options.observation.state"
                )
        for path in self._state:
            if _is_image(self._spaces[path]):
                raise UserError(
                    f"{self._what}: the observation's entry {path!r} is a picture "
                    f"{self._spaces[path].shape}; name it in simulator.options.observation.images"
                )
        for path in texts:
            if type(self._spaces[path]).__name__ != "Text":
                raise UserError(
                    f"{self._what}: simulator.options.observation.instruction = {path!r} must name an entry "
                    f"of text, it is {self._spaces[path]}; name another, or set simulator.options.instruction"
                )

    def _listed(self) -> str:
        return ", ".join(repr(path) if path else "'' (all of it)" for path in self._spaces) or "none"

    def __call__(self, raw: Any) -> Observation:
        """The fields of an observation: images uint8 [H, W, 3], everything else float32 [n]."""
        fields: dict[str, npt.NDArray[Any]] = {
            name: self._image(name, source, raw) for name, source in self._sources.items()
        }
        for name, path in self._each.items():
            fields[name] = self._numbers(raw, path)
        if self._state:
            fields[STATE] = np.concatenate([self._numbers(raw, path) for path in self._state])
        return fields

    def _entry(self, raw: Any, path: str) -> Any:
        try:
            return entry(raw, path)
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(
                f"{self._what}: an observation has no entry {path!r}, which the environment's "
                "observation_space says; mend the environment"
            ) from error

    def _numbers(self, raw: Any, path: str) -> npt.NDArray[np.float32]:
        space, value = self._spaces[path], self._entry(raw, path)
        try:
            given = np.shape(value)
            if given == tuple(space.shape):
                return _numbers(space, value)
        except (ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"{self._what}: the observation's entry {path!r} does not fit its space {space} "
                f"({in_words(error)}); mend the environment"
            ) from error
        raise UserError(
            f"{self._what}: the observation's entry {path!r} has the shape {list(given)}, its space says "
            f"{list(space.shape)}; mend the environment"
        )

    def _image(self, name: str, source: ImageSource, raw: Any) -> npt.NDArray[np.uint8]:
        call = source.source.endswith(_CALL)
        found = self._call(name, source.source) if call else self._entry(raw, source.source)
        if found is None or isinstance(found, str | Mapping):
            raise UserError(
                f"{self._what}: image {name!r} from {source.source!r}: it gives {a_type(found)} and no "
                f"picture; name one that does in simulator.options.observation.images.{name}"
            )
        try:
            pixels = as_bytes(np.asarray(found), channels_first=source.channels_first, scale=source.scale)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self._what}: image {name!r} from {source.source!r}: {error}; correct "
                f"simulator.options.observation.images.{name}"
            ) from error
        return shrink(pixels, source.size) if source.size else pixels

    def _call(self, image: str, source: str) -> Any:
        name = source.removesuffix(_CALL)
        method = getattr(self._env if name == "render" else self._env.unwrapped, name, None)
        if not callable(method):
            raise UserError(
                f"{self._what}: simulator.options.observation names {source!r}, but the environment has no "
                f"method {name}; name an entry of its observations ({self._listed()})"
            )
        if name == "render":
            return drawn(method, self._what)
        try:
            return method()
        except USERS_FAULTS as error:
            raise UserError(
                f"{self._what}: image {image!r} from {source!r}: the method fails "
                f"({in_words(error, method)}); mend it, or name one that draws in "
                f"simulator.options.observation.images.{image}"
            ) from error

    def instruction(self, raw: Any) -> str:
        """The instruction in an observation; empty where no entry holds it."""
        return str(entry(raw, self._instruction)) if self._instruction else ""

    def specs(self, raw: Any) -> tuple[FieldSpec, ...]:
        """What the fields are, found out with one observation.

        Raises:
            UserError: an image that is none, or no fields at all.
        """
        fields = self(raw)
        if not fields:
            raise UserError(f"{self._what}: its observations hold nothing that a policy can read")
        return tuple(
            FieldSpec(name=name, shape=array.shape, dtype=str(array.dtype)) for name, array in fields.items()
        )


def _is_image(space: Any) -> bool:
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    return bool(space.dtype == np.uint8 and len(shape) == 3 and shape[-1] == 3)


def _is_numbers(space: Any) -> bool:
    return type(space).__name__ in ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


def _numbers(space: Any, value: Any) -> npt.NDArray[np.float32]:
    """Numbers as float32 [n]; one of several choices as a one for it and zeros for the others."""
    kind = type(space).__name__
    if kind == "Discrete":
        return _one_hot(int(space.n), int(value) - int(space.start))
    if kind == "MultiDiscrete":
        chosen = (np.asarray(value) - space.start).ravel()
        return np.concatenate(
            [_one_hot(int(n), int(c)) for n, c in zip(space.nvec.ravel(), chosen, strict=True)]
        )
    return np.asarray(value).astype(np.float32).ravel()


def _one_hot(count: int, index: int) -> npt.NDArray[np.float32]:
    vector = np.zeros(count, np.float32)
    vector[index] = 1.0
    return vector


def drawn(draw: Callable[[], Any], what: str) -> Any:
    """What an environment's own method draws.

    Args:
        draw: the method.
        what: names the environment in errors.

    Raises:
        UserError: it cannot, for instance because a package is missing.
    """
    try:
        return draw()
    except USERS_FAULTS as error:
        raise UserError(
            f"{what}: the environment cannot draw itself ({in_words(error)}); install what it misses"
        ) from error
