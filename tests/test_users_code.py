"""Modules of the user's own that do not work: one line that says which setting, what and where."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import bandit
import pytest
import torch

from rlvla3.algorithms.api import Groups, Needs
from rlvla3.algorithms.own import Own
from rlvla3.assembly import Assembly
from rlvla3.cli import main
from rlvla3.config import load_config
from rlvla3.core.batcher import Pending
from rlvla3.errors import UserError
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.messages import Member, Request, Slot, Version


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's, importable as ``mine``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "mine.py"
    import sys

    sys.modules.pop("mine", None)


FIELDS = ("simulator.kind", "policy.kind", "algorithm.kind", "learner.kind", "generator.order")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def broken(:\n", "importing 'mine' fails: SyntaxError: invalid syntax (mine.py, line 1)"),
        ("\nraise RuntimeError('no licence')\n", "fails: RuntimeError: no licence (mine.py:2)"),
        ("import sys; sys.exit(7)\n", "fails: SystemExit: 7 (mine.py:1)"),
        ("import nothing_here\n", "no module 'nothing_here'; install it or correct the name"),
    ],
)
def test_a_module_that_cannot_be_imported(field: str, text: str, line: str, module: Path) -> None:
    module.write_text(text)
    with pytest.raises(UserError) as refusal:
        load_config("reach", [f"{field}=mine:Thing"])
    assert field in str(refusal.value) and line in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_settings_that_are_no_settings(module: Path) -> None:
    module.write_text("class Thing:\n    Settings = dict\n    estimates = loss = None\n")
    with pytest.raises(UserError, match=r"Settings must be a subclass of rlvla3\.settings\.Settings"):
        load_config("reach", ["algorithm.kind=mine:Thing"])


def test_an_algorithm_that_does_not_say_what_it_needs(module: Path) -> None:
    module.write_text(
        textwrap.dedent("""
        from rlvla3.settings import Settings as Base

        class Thing:
            class Settings(Base):
                pass

            def __init__(self, settings):
                pass

            estimates = loss = None
        """)
    )
    with pytest.raises(UserError, match="its attribute needs must be a Needs"):
        _ = Assembly(load_config("reach", ["algorithm.kind=mine:Thing"])).algorithm


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("def loss(self, inputs, *, value_only): return 1 / 0", "ZeroDivisionError: division by zero"),
        ("def loss(self, inputs, *, value_only): return inputs.value", "loss must return (losses, figures)"),
        (
            "def loss(self, inputs, *, value_only): return inputs.value.mean(), {}",
            "loss must be a tensor [24], it is ()",
        ),
        ("def loss(self, inputs, *, value_only): return inputs.returns, {}", "loss must have a gradient"),
        (
            "def loss(self, inputs, *, value_only): return inputs.value, {'x': 1.0}",
            "figure 'x' must be a tensor [24], it is float",
        ),
        ("def estimates(self, rollouts): return None", "estimates must return (Estimates, figures)"),
        (
            "def estimates(self): return None",
            "Thing.estimates() takes 1 positional argument but 2 were given (mine.py:4)",
        ),
        (
            "def loss(self, inputs): return None",
            "Thing.loss() got an unexpected keyword argument 'value_only' (mine.py:4)",
        ),
    ],
)
def test_an_algorithm_that_fails_in_an_update_is_named(method: str, fault: str, module: Path) -> None:
    module.write_text(f"from rlvla3.algorithms.ppo import PPO\n\nclass Thing(PPO):\n    {method}\n")
    algorithm = Assembly(load_config("reach", ["algorithm.kind=mine:Thing"])).algorithm
    settings = ReinforcementSettings(minibatch=64, value_warm_up=0)
    trained = Reinforcement(bandit.build(), algorithm, settings, seed=0)

    def update() -> None:
        trained.ingest(*bandit.rollout(trained.model, 12, 2))
        trained.update()

    with pytest.raises(UserError, match=re.escape(fault)) as refusal:
        update()
    assert "algorithm.kind = 'mine:Thing'" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("def key(): return 1", "TypeError: key() takes 0 positional arguments but 1 was given (mine.py:1)"),
        ("def key(pending): return pending.nothing", "no attribute 'nothing' (mine.py:1)"),
        ("def key(pending): return object()", "of 'object' and 'object' (mine.py:1)"),
    ],
)
def test_an_order_that_cannot_order(body: str, fault: str, module: Path) -> None:
    module.write_text(body + "\n")
    with pytest.raises(UserError) as refusal:
        load_config("reach", ["generator.order=mine:key"])
    assert "generator.order: mine:key must be a function" in str(refusal.value)
    assert fault in str(refusal.value)


def request_of(samples: int) -> Pending:
    rows = tuple(range(samples))
    request = Request(slot=Slot(0), seq=0, kind="act", channel="rollout", rows=rows, chunks=rows)
    return Pending(
        request, member=Member("simulator-0"), stage=0, arrival_s=0.0, served=0, oldest_version=Version(0)
    )


def test_an_order_that_fails_later_is_named(module: Path) -> None:
    """What the engine calls in the middle of a run says whose fault it is."""
    module.write_text("def key(pending): return 1 / (pending.samples - 3)\n")
    order = Assembly(load_config("reach", ["generator.order=mine:key"])).settings.batching.order
    assert order(request_of(1)) == -0.5
    with pytest.raises(UserError, match=r"generator.order = 'mine:key' fails: ZeroDivisionError.*mine.py:1"):
        order(request_of(3))


def test_an_order_of_the_users_own(module: Path) -> None:
    module.write_text("def key(pending): return (-pending.samples, pending.arrival_s)\n")
    made = Assembly(load_config("reach", ["generator.order=mine:key"]))
    found = sorted((request_of(samples) for samples in (1, 3, 2)), key=made.settings.batching.order)
    assert [pending.samples for pending in found] == [3, 2, 1]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("\ndef reward(info): return 1", "takes 1 positional argument but 3 were given (mine.py:2)"),
        ("def reward(info, success, dense): return info['reward']", "KeyError: 'reward' (mine.py:1)"),
        (
            "def reward(info, success, dense): return 'much'",
            "string to float: 'much' (mine.py:1)",
        ),
    ],
)
def test_a_reward_that_cannot_be_computed(
    body: str, fault: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text(body + "\n")
    with pytest.raises(SystemExit) as end:
        main(["check", "demo", "simulator.options.reward=mine:reward"])
    line = capsys.readouterr().err
    assert end.value.code == 2 and len(line.strip().splitlines()) == 1
    assert "simulator.options.reward = 'mine:reward'" in line and fault in line


SIMULATOR = """
from rlvla3.simulators.synthetic import Synthetic

class Mine(Synthetic):
    {}
"""


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("def __init__(self, settings): raise RuntimeError('boom')", "fails: RuntimeError: boom (mine.py:5)"),
        ("def __init__(self, settings): raise SystemExit(0)", "fails: SystemExit: 0 (mine.py:5)"),
        ("def __init__(self): pass", "takes 1 positional argument but 2 were given (mine.py:5)"),
        ("spec = None", "its spec must be a SimulatorSpec, it is None"),
        ("spec = property(lambda self: self.nothing)", "AttributeError"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_simulator_that_cannot_be_built(
    command: str, body: str, fault: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text(SIMULATOR.format(body))
    with pytest.raises(SystemExit) as end:
        main([command, "reach", "simulator.kind=mine:Mine", "simulator.options.task=reach"])
    line = capsys.readouterr().err
    assert end.value.code == 2 and len(line.strip().splitlines()) == 1, line
    assert "simulator.kind = 'mine:Mine'" in line and fault in line


@pytest.mark.live
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("def make(self): raise RuntimeError('no display')", "RuntimeError: no display (mine.py:5)"),
        ("def make(self): raise SystemExit(0)", "SystemExit: 0 (mine.py:5)"),
    ],
)
def test_a_simulator_that_cannot_demonstrate(
    body: str, fault: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text(SIMULATOR.format(body))
    with pytest.raises(SystemExit) as end:
        main(["sft", "reach", "simulator.kind=mine:Mine", "simulator.options.task=reach", "--folder", "run"])
    line = capsys.readouterr().err
    assert end.value.code == 2 and len(line.strip().splitlines()) == 1, line
    assert "simulator.kind = 'mine:Mine' fails" in line and fault in line


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        ({"size": 0}, "needs.groups.size must be an integer of at least 2, it is 0"),
        ({"size": 1}, "needs.groups.size must be an integer of at least 2, it is 1"),
        ({"size": 8, "score": "foo"}, "needs.groups.score must be success or return, it is 'foo'"),
        (
            {"size": 8, "replacements": -2},
            "needs.groups.replacements must be an integer of at least 0, it is -2",
        ),
        ({"size": 8, "tolerance": -1}, "needs.groups.tolerance must be a number of at least 0, it is -1"),
    ],
)
def test_groups_of_an_own_algorithm_that_cannot_be_are_one_line(groups: dict, line: str) -> None:
    algorithm = SimpleNamespace(needs=Needs(groups=Groups(**groups)), estimates=None, loss=None)
    with pytest.raises(UserError, match=re.escape(line)):
        Own(algorithm, "mine:Thing")


@pytest.mark.parametrize("name", ["grad_norm", "a b/c", "", 3])
def test_a_figure_of_an_own_algorithm_stands_in_for_no_other(name: object) -> None:
    loss = torch.ones(2, requires_grad=True) * 1
    own = Own(
        SimpleNamespace(
            needs=Needs(), estimates=None, loss=lambda inputs, value_only: (loss, {name: loss.detach()})
        ),
        "mine:Thing",
    )
    with pytest.raises(UserError, match=re.escape(f"loss: figure {name!r} must be named in small letters")):
        own.loss(SimpleNamespace(value=torch.zeros(2)), value_only=False)
