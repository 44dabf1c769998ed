"""Simulators as they describe themselves, and what policies of five families expect."""

from rlvla3.simulators import robocasa_meaning
from rlvla3.simulators.registry import simulator_class
from rlvla3.simulators.robocasa import STATES
from rlvla3.transforms.expecting import Concessions, Expectation, Picture
from rlvla3.transforms.meaning import Gripper, Meaning, Numbers, Rotation, Switch


def own(kind: str, **settings) -> Meaning:
    cls = simulator_class(kind)
    spec = cls(cls.Settings.model_validate(settings)).spec
    assert spec.meaning.faults(spec.observation, spec.action_dim) == []
    return spec.meaning


# RoboCasa's spec says what of it is installed; what its fields mean is known without it.
ROBOCASA = robocasa_meaning.meaning(("left", "right", "wrist"), 224, STATES[16])
LIBERO = own("libero")
MANISKILL = own("maniskill", image_size=128)
SIMULATORS = {
    "libero": LIBERO,
    "maniskill": MANISKILL,
    "robocasa": ROBOCASA,
    "metaworld": own("metaworld", image_size=480, cameras=["corner2"]),
    "reach": own("synthetic"),
}

_PANDA = (
    Numbers(name="eef_position", size=3),
    Rotation(name="eef_rotation", form="axis_angle"),
    Gripper(open=(0.04, -0.04), closed=(0.0, 0.0)),
)
_OSC = (
    Numbers(name="delta_position", size=3, scale=0.05, frame="base"),
    Rotation(name="delta_rotation", form="axis_angle", scale=0.5, frame="base"),
)
POLICIES = {
    "pi0": Expectation(
        cameras=("front", "wrist"),
        picture=Picture(height=224, width=224),
        state=_PANDA,
        state_width=32,
        action=(*_OSC, Gripper(open=(-1.0,), closed=(1.0,))),
        action_width=32,
        horizon=50,
        relative=(("delta_position", "eef_position"), ("delta_rotation", "eef_rotation")),
    ),
    "oft": Expectation(
        cameras=("front", "wrist"),
        picture=Picture(
            height=224, width=224, range="unit", crop=0.9**0.5, filter="lanczos3", keep_ratio=False
        ),
        state=_PANDA,
        clip_state=1.0,
        action=(*_OSC, Gripper(open=(1.0,), closed=(0.0,), threshold=0.5)),
        horizon=8,
    ),
    "groot": Expectation(
        cameras=("left", "right", "wrist"),
        picture=Picture(height=224, width=224, range="bytes", crop=0.95, keep_ratio=False),
        state=(
            Numbers(name="eef_position", size=3),
            Rotation(name="eef_rotation", form="rows_6d"),
            Gripper(open=(0.04, -0.04), closed=(0.0, 0.0)),
        ),
        state_width=64,
        action=(
            *_OSC,
            Gripper(open=(1.0,), closed=(0.0,)),
            Numbers(name="base", size=2),
            Numbers(name="base_turn", size=1, scale=1.5),
            Numbers(name="torso", size=1, scale=0.05),
            Switch(name="mode", on=1.0, off=0.0),
        ),
        action_width=32,
        horizon=16,
    ),
    "smolvla": Expectation(
        cameras=("front",),
        picture=Picture(height=512, width=512, antialias=False, place="bottom_right"),
        state_width=32,
        action_width=32,
        horizon=50,
    ),
    "tiny": Expectation(),
}
"""Shapes and conventions of each family; sizes are its own."""

_NO_WRIST = {"cameras": {"wrist": "blank"}}
_TWO_FOR_FRONT = {"cameras": {"left": "front", "right": "blank"}}
_BASE = ("base", "base_turn", "torso", "mode")
_FLAT = {"zeros": ("eef_rotation",), "dropped": ("delta_rotation",)}
_NOTHING = {
    "zeros": ("eef_position", "eef_rotation", "gripper"),
    "dropped": ("delta_position", "delta_rotation", "gripper"),
    "held": ("delta_pointer",),
}
PAIRS: dict[tuple[str, str], tuple[str, dict]] = {
    # (policy, simulator): what is said without concessions (nothing: they fit), and what makes them fit
    ("pi0", "libero"): ("", {}),
    ("pi0", "maniskill"): ("camera 'wrist'", _NO_WRIST),
    ("pi0", "robocasa"): ("camera 'front'", {"cameras": {"front": "left"}, "held": _BASE}),
    ("pi0", "metaworld"): ("camera 'wrist'", _NO_WRIST | _FLAT),
    ("pi0", "reach"): ("camera 'wrist'", _NO_WRIST | _NOTHING),
    ("oft", "libero"): ("", {}),
    ("oft", "maniskill"): ("camera 'wrist'", _NO_WRIST),
    ("oft", "robocasa"): ("camera 'front'", {"cameras": {"front": "left"}, "held": _BASE}),
    ("oft", "metaworld"): ("camera 'wrist'", _NO_WRIST | _FLAT),
    ("oft", "reach"): ("camera 'wrist'", _NO_WRIST | _NOTHING),
    ("groot", "libero"): ("camera 'left'", _TWO_FOR_FRONT | {"dropped": _BASE}),
    ("groot", "maniskill"): (
        "camera 'left'",
        {"cameras": {"left": "front", "right": "front", "wrist": "blank"}, "dropped": _BASE},
    ),
    ("groot", "robocasa"): ("", {}),
    ("groot", "metaworld"): (
        "camera 'left'",
        {
            "cameras": {"left": "front", "right": "blank", "wrist": "blank"},
            "zeros": ("eef_rotation",),
            "dropped": ("delta_rotation", *_BASE),
        },
    ),
    ("groot", "reach"): (
        "camera 'left'",
        {
            "cameras": {"left": "front", "right": "front", "wrist": "front"},
            "zeros": _NOTHING["zeros"],
            "dropped": (*_NOTHING["dropped"], *_BASE),
            "held": ("delta_pointer",),
        },
    ),
    ("smolvla", "libero"): ("", {}),
    ("smolvla", "maniskill"): ("", {}),
    ("smolvla", "robocasa"): ("camera 'front'", {"cameras": {"front": "wrist"}}),
    ("smolvla", "metaworld"): ("", {}),
    ("smolvla", "reach"): ("", {}),
    **{("tiny", name): ("", {}) for name in SIMULATORS},
}


def concessions(pair: tuple[str, str]) -> Concessions:
    return Concessions(**PAIRS[pair][1])
