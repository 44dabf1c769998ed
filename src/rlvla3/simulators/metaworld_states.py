"""Meta-World's inner environments, made cheap to build and reset, and its initial states.

The initial states of a benchmark seed are the 50 goal vectors that ``metaworld.MT1(task, seed)``
draws, so that published protocols can be repeated; here they cost a few milliseconds, use no
global random state, and continue past the fiftieth.
"""

import copy
import functools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError

STATES_PER_SEED = 50
"""Goals of one task for one benchmark seed, as in Meta-World's own benchmarks."""

_states: dict[tuple[str, int], npt.NDArray[np.float64]] = {}
_states_lock = threading.Lock()


def block_seed(benchmark_seed: int, split: int, block: int) -> int:
    """The benchmark seed of states ``50·block … 50·block + 49`` of a split.

    Block 0 is the configured seed itself; further seeds depend on the split's number as well, so
    that splits do not meet.
    """
    if block == 0:
        return benchmark_seed
    return int(np.random.SeedSequence([benchmark_seed, split, block]).generate_state(1)[0])


def goal_vector(inner: Any, task: str, seed: int, index: int) -> npt.NDArray[np.float64]:
    """Goal vector ``index`` (< 50) of ``task`` for one benchmark seed; ``inner`` is a free env of the task.

    ``inner`` needs a full reset afterwards.
    """
    with _states_lock:
        if (task, seed) not in _states:
            _states[task, seed] = inner.draw_goal_vectors(seed)
        vector: npt.NDArray[np.float64] = _states[task, seed][index]
        return vector


@functools.cache
def _pristine_model(path: str) -> Any:
    import mujoco

    return mujoco.MjModel.from_xml_path(path)


def _initialize_simulation(self: Any) -> tuple[Any, Any]:
    import mujoco

    # Parsing XML and meshes takes 0.15 s, a copy 2 ms.
    model = copy.copy(_pristine_model(self.fullpath))
    return model, mujoco.MjData(model)


def _reset_model(self: Any) -> Any:
    self.reset_passes += 1
    return super(type(self), self).reset_model()


def _do_simulation(self: Any, ctrl: Any, n_frames: int) -> None:
    # Meta-World's reset runs reset_model twice, with all physics state cleared in between. What
    # the first pass leaves behind are fixtures moved in the model, so its 250 physics steps of
    # moving the hand are skipped: bit-equal (tested on all tasks) at half the price.
    if self.reset_passes != 1:
        super(type(self), self).do_simulation(ctrl, n_frames)


def _reset(self: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
    self.reset_passes = 0
    result = super(type(self), self).reset(seed=seed, options=options)
    self.reset_passes = 0
    return result


def _draw_goal_vectors(self: Any, seed: int) -> npt.NDArray[np.float64]:
    """The 50 goal vectors [50, n] that MT1 draws with this seed."""
    random = np.random.RandomState(seed)
    space = self._random_reset_space

    def draw() -> npt.NDArray[np.float64]:
        vector: npt.NDArray[np.float64] = random.uniform(space.low, space.high, size=space.low.size)
        self._last_rand_vec = vector
        return vector

    self._get_state_rand_vec = draw
    self._set_task_called = True
    vectors = []
    for _ in range(STATES_PER_SEED):
        for _ in range(2):  # MT1 records the vector of the second pass of each reset
            self.reset_passes = 0
            self.reset_model()
        vectors.append(self._last_rand_vec)
    del self._get_state_rand_vec
    self.reset_passes = 0
    return np.array(vectors)


@functools.cache
def _inner_class(task: str) -> type:
    try:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise UserError(
            f"simulator metaworld needs its extra: pip install 'rlvla3[metaworld]' ({error})"
        ) from error
    upstream = ALL_V3_ENVIRONMENTS[task]
    members = {
        "reset_passes": 0,
        "_initialize_simulation": _initialize_simulation,
        "reset_model": _reset_model,
        "do_simulation": _do_simulation,
        "reset": _reset,
        "draw_goal_vectors": _draw_goal_vectors,
    }
    return type(upstream.__name__, (upstream,), members)


def make_inner(task: str) -> Any:
    """A Meta-World env of ``task`` that steps past its own limit (the adapter counts).

    Raises:
        UserError: the metaworld extra is not installed.
    """
    inner = _inner_class(task)()
    inner.max_path_length = 2**31
    return inner


def set_goal_vector(inner: Any, vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Reset ``inner`` to the initial state of a goal vector; the privileged observation [39]."""
    inner._set_task_called = True
    inner._freeze_rand_vec = True
    inner._last_rand_vec = vector.copy()
    if inner._partially_observable:
        inner._partially_observable = False
        del inner.sawyer_observation_space
    observation: npt.NDArray[np.float64] = inner.reset()[0]
    return observation
