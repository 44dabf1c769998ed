"""Real Gymnasium environments for the tests of the adapter, small ones of our own."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """A point on a line that goes where it is told; solved at 1. ``info`` has nested entries."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None, *, goal=1.0, wide=False, shown="go right", at_reset=True):
        self.render_mode = render_mode
        self.goal, self.shown, self.at_reset = goal, shown, at_reset
        self.drawn = 0
        self.action_space = spaces.Box(-2.0, 6.0, (1,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "point": spaces.Dict({"x": spaces.Box(-9, 9, (2 if wide else 1,), np.float64)}),
                "gear": spaces.Discrete(3, start=1),
                "switches": spaces.MultiDiscrete([2, 3]),
                "lamps": spaces.MultiBinary(2),
                "pair": spaces.Tuple((spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2))),
                "camera": spaces.Box(0, 1, (3, 4, 6), np.float32),
                "told": spaces.Text(40),
            }
        )
        self.width = 2 if wide else 1

    def _observation(self):
        return {
            "point": {"x": np.full(self.width, self.x)},
            "gear": 3,
            "switches": np.array([1, 2]),
            "lamps": np.array([0, 1], np.int8),
            "pair": (np.array([0.25, 0.75], np.float32), 1),
            "camera": np.linspace(0, 1, 72, dtype=np.float32).reshape(3, 4, 6),
            "told": self.shown,
        }

    def _info(self):
        return {"place": {"x": self.x}, "near": abs(self.goal - self.x) < 0.25}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.5, 0.5))
        if options is not None:
            self.x = float(options["start"][0])
        return self._observation(), self._info() if self.at_reset else {}

    def step(self, action):
        self.x += float(action[0])
        return self._observation(), -abs(self.goal - self.x), False, False, self._info()

    def render(self):
        self.drawn += 1
        return np.full((5, 7, 3), 99, np.uint8)

    def dot(self):
        """A picture that costs something: how often it is drawn is counted."""
        self.drawn += 1
        return np.full((8, 8), 50 + self.drawn, np.uint8)


class Faulty(Walk):
    """Does one thing wrong."""

    def __init__(self, fault="", **arguments):
        super().__init__(**arguments)
        self.fault = fault

    def _observation(self):
        found = super()._observation()
        if self.fault == "shape":
            found["point"]["x"] = np.zeros(2)
        if self.fault == "entry":
            del found["point"]
        if self.fault == "choice":
            found["switches"] = np.array([1, 7])
        return found

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        if self.fault == "reset":
            return found[0]
        if self.fault == "raises":
            raise RuntimeError("no\nlight")
        return found

    def step(self, action):
        observation, reward, _, cut, info = super().step(action)
        if self.fault == "step":
            return observation, reward, cut, info
        return observation, reward, True, cut, info


class Blind(Walk):
    """The same without pictures."""

    metadata = {"render_modes": []}  # noqa: RUF012


class Seeing(Walk):
    """Shows bytes of a picture as an entry."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.observation_space["view"] = spaces.Box(0, 255, (4, 6, 3), np.uint8)

    def _observation(self):
        return super()._observation() | {"view": np.full((4, 6, 3), 80, np.uint8)}


class Turning(Walk):
    """Tells something else at every other reset."""

    def reset(self, *, seed=None, options=None):
        self.shown = "go left" if self.shown == "go right" else "go right"
        return super().reset(seed=seed, options=options)


def blind(**arguments):
    return Blind(**arguments)


class Choice(Walk):
    """Actions that are one of several."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Discrete(3)


class Plane(gymnasium.Env):
    """A point that is told where to be."""

    def __init__(self):
        self.action_space = spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2,), np.float64)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"at": np.array([1.0, -1.0])}, {}

    def step(self, action):
        return {"at": action}, 0.0, False, False, {}


class Guide:
    """An expert that goes to the goal; counts its episodes."""

    def __init__(self, env):
        self.env = env
        self.episodes = 0

    def reset(self):
        self.episodes += 1

    def act(self, observation):
        return [self.env.goal - observation["point"]["x"][0]]


class Lost:
    """An expert that fails."""

    def __init__(self, env):
        pass

    def act(self, observation):
        raise RuntimeError("no map")


def bonus(info, success, dense):
    return info["place"]["x"] if isinstance(info["place"], dict) else info["place"]


NOT_AN_ENVIRONMENT = dict


class Still(Walk):
    """Its only action has one value."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.action_space = spaces.Box(1.0, 1.0, (1,), np.float32)


class _Wrong(gymnasium.Env):
    """Fine but for what each class below does wrong."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    reward, shown = 0.0, np.zeros((8, 8, 3), np.uint8)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), self.reward, False, False, {}

    def render(self):
        return self.shown


class BreaksAtStep(_Wrong):
    def step(self, action):
        raise RuntimeError("motor broke")


class BreaksAtClose(_Wrong):
    def close(self):
        raise RuntimeError("cannot close")


class BadReward(_Wrong):
    reward = "much"


class DrawsNothing(_Wrong):
    shown = None


class NoSpace(_Wrong):
    observation_space = None


class BrokenSpace(_Wrong):
    action_space = property(lambda self: 1 / 0)
