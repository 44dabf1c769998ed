"""What is put around a policy's model keeps the model's interface. No torch."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


class Wrapped:
    """A model around a model: what a subclass does not define is the inner model's."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # asked for before it is set, by copying, say
            raise AttributeError(name)
        return getattr(self._model, name)

    def base(self) -> Arrays:
        """What ``arrays`` leaves out because it never trains; see ``base_of``."""
        return base_of(self._model)


def base_of(model: Any) -> Arrays:
    """The arrays that a model does not publish: with what it does, they are the whole policy."""
    return model.base() if isinstance(model, Wrapped) else {}


def network(model: Any) -> Any:
    """The policy's own module, inside of what is around it."""
    return network(model._model) if isinstance(model, Wrapped) else model
