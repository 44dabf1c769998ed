"""Adapters whose own code fails; kinds ``failing:NAME``."""

from rlvla3.simulators.synthetic import ReachEnv, Synthetic


class _Reset(ReachEnv):
    def reset(self, start, step_limit):
        return self.floor


class _Step(ReachEnv):
    def step(self, action):
        raise RuntimeError(f"motor broke at {id(self)}")


class _Nothing(ReachEnv):
    def step(self, action):
        return None


class _Close(ReachEnv):
    def close(self):
        raise RuntimeError("cannot close")


class _StepAndClose(_Step, _Close):
    """The first fault is the one to tell."""


def _adapter(env):
    return type("Failing", (Synthetic,), {"make": lambda self: env(self._settings)})


Reset, Step, Nothing, Close, StepAndClose = map(_adapter, (_Reset, _Step, _Nothing, _Close, _StepAndClose))
