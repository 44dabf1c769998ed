"""``rlvla3 check``: derived numbers, warnings, and that every accepted count runs exactly."""

import importlib.util
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.assembly import Assembly
from rlvla3.checking import machine
from rlvla3.checking.derived import derived
from rlvla3.checking.machine import lacking
from rlvla3.checking.settings_without_effect import findings
from rlvla3.cli import main
from rlvla3.commands.checking import read_costs
from rlvla3.config import Config, load_config
from rlvla3.costs import Costs
from rlvla3.devices import has_cuda
from rlvla3.errors import UserError
from rlvla3.prediction import predict

COSTS = Costs(sub_step_s=0.005, sub_step_cv=1.0, inference_s=0.02, inference_per_sample_s=0.001)


def assembly(*overrides: str) -> Assembly:
    return Assembly(load_config("schedule-benchmark", list(overrides)))


def numbers(*overrides: str) -> dict[str, float]:
    return {row.name: row.value for row in derived(assembly(*overrides))}


def warned(*overrides: str, cores: float = 8) -> dict[str, str]:
    return {f.field: f.text for f in findings(assembly(*overrides), cores)}


def test_numbers_of_the_schedule_benchmark() -> None:
    found = numbers("trainer.micro_batch=50", "trainer.updates=3", "schedule.max_lag=2")
    wanted = {
        "envs": 32,
        "slots": 32,
        "chunks_per_version": 1600,
        "sub_steps_per_version": 1600,
        "micro_batches_per_version": 4,
        "max_lag": 2,
        "most_trajectories": 480,
        "busy_envs": 32,
        "rows": 512,
        "total_sub_steps": 4800,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_numbers_of_several_trainers() -> None:
    overrides = ("trainer.members=3", "trainer.micro_batch=50", "algorithm.kind=echo:Grouped")
    whole = ("trainer.trajectory=episode", "trainer.chunks=10")
    found = {row.name: row for row in derived(assembly(*overrides, *whole))}
    assert found["trainers"].value == 3
    assert found["trainers"].note == "ranks that share the 80 groups of 2 of a version"
    # 80 groups in rounds of 3 x 25: 75, then 5 groups for three members.
    assert found["micro_batches_per_version"].value == 2
    assert "the last of 2 or 4" in found["micro_batches_per_version"].note
    alone = {row.name: row for row in derived(assembly())}
    assert alone["trainers"].note == "takes all 160 trajectories of a version"
    process_mib = 60
    assert found["memory"].value - alone["memory"].value > 2 * process_mib - 1


def test_numbers_of_episodes_and_evaluation() -> None:
    found = {
        row.name: row
        for row in derived(
            Assembly(
                load_config(
                    "reach",
                    ["evaluation.every_versions=50", "evaluation.at_start=true", "evaluation.videos=2"],
                )
            )
        )
    }
    assert found["chunks_per_trajectory"].value == 10
    assert found["evaluations"].value == 3  # at the start, after 50 and after 100 of 120 versions
    assert found["evaluation_episodes"].value == 150
    assert found["videos"].value == 6
    assert "estimated" in found["weights"].note


@pytest.mark.parametrize("extra", [[], ["policy.lora.rank=8"], ["policy.options.freeze_prefix=false"]])
def test_the_estimate_of_what_trains_is_near_the_truth(extra) -> None:
    from rlvla3.policies.building import build_model

    assembly = Assembly(load_config("reach", ["policy.options.store_prefix=false", *extra]))
    model = build_model(assembly.policy, assembly.config.policy, "cpu", 0, "train")
    found = {number.name: number.value for number in derived(assembly)}
    for name, parameters in (
        ("weights", list(model.named_parameters())),
        ("trained", model.trainable("reinforcement")),
    ):
        assert found[name] == pytest.approx(sum(4 * p.numel() for _, p in parameters) / 2**20, rel=0.15)


def test_check_says_which_layers_get_adapters_or_that_it_cannot_know() -> None:
    rank = ("policy.lora.rank=4", "policy.lora.targets=[expert_blocks.*qkv]")
    found = {row.name: row for row in derived(Assembly(load_config("reach", list(rank))))}
    assert found["adapter_rank"].value == 4
    assert found["adapter_rank"].note == (
        "in 3 layers: expert_blocks.0.qkv, expert_blocks.1.qkv, expert_blocks.2.qkv"
    )
    own = Assembly(load_config("reach", [*rank, "policy.kind=echo:DigestPolicy", "policy.options.folder=x"]))
    found = {row.name: row for row in derived(own)}
    told = "this policy does not name its layers: policy.lora is matched when training starts"
    assert found["adapter_rank"].note == told
    assert "adapter_rank" not in {row.name for row in derived(Assembly(load_config("reach", [])))}


def test_no_warning_where_nothing_is_wrong() -> None:
    assert not warned()
    assert not findings(Assembly(load_config("reach", [])), 2)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (("simulator.slots=8", "generator.max_batch_size=4"), "generator.max_batch_size"),
        (("generator.max_batch_size=100",), "generator.max_batch_size"),
        (("schedule.mode=ss",), "generator.linger_ms"),
        (("generator.batch_timeout_ms=4",), "generator.batch_timeout_ms"),
        (("generator.batch_timeout_ms=1000000",), "generator.batch_timeout_ms"),
        (("generator.pins={0: 0}",), "generator.pins"),
        (("generator.routing=pinned",), "generator.routing"),
        (("simulator.slots=2", "generator.members=3", "generator.max_batch_size=32"), "generator.members"),
        (
            ("simulator.slots=2", "generator.members=2", "generator.routing=pinned", "generator.pins={0: 1}"),
            "generator.pins",
        ),
        (("simulator.lanes=33",), "simulator.lanes"),
        (
            (
                *("simulator.options.together=true", "trainer.trajectory=episode"),
                *("simulator.options.step_limits=10", "simulator.lanes=2", "simulator.slots=2"),
            ),
            "simulator.lanes",
        ),
        (
            (
                *("simulator.options.together=true", "trainer.trajectory=episode", "simulator.members=1"),
                *("simulator.options.step_limits=10", "simulator.batches=1", "simulator.lanes=1"),
            ),
            "simulator.batches",
        ),
        (("simulator.slots=1",), "simulator.slots"),
        (("schedule.mode=as", "schedule.max_lag=2"), "schedule.max_lag"),
        (("schedule.mode=as", "schedule.streaming=true"), "schedule.streaming"),
        (("schedule.mode=as", "schedule.on_stale=drop"), "schedule.on_stale"),
        (
            ("algorithm.options.correction=none", "algorithm.options.weight_limit=3"),
            "algorithm.options.weight_limit",
        ),
        (("trainer.batch=15", "trainer.micro_batch=15"), "trainer.batch"),
        (("policy.kind=tiny", "policy.options.temperature=0.5"), "policy.options.temperature"),
        (("policy.kind=tiny", "policy.options.noise_std=[0.1, 0.2]"), "policy.options.noise_std"),
        (
            ("policy.kind=tiny", "policy.options.head=tokens", "policy.options.method=noise"),
            "policy.options.method",
        ),
        (
            ("policy.kind=tiny", "policy.options.freeze_prefix=false", "policy.publish=trained"),
            "policy.publish",
        ),
        (("trainer.micro_batch=50",), "trainer.micro_batch"),
        (("evaluation.max_envs=3",), "evaluation.max_envs"),
        (("evaluation.every_versions=1", "evaluation.max_envs=33"), "evaluation.max_envs"),
        (("evaluation.every_versions=7",), "evaluation.every_versions"),
        (("evaluation.videos=11",), "evaluation.videos"),
        (("checkpoint.every_versions=7",), "checkpoint.every_versions"),
        (("tasks.states=100",), "tasks.states"),
        (("tasks.list=[delay]",), "tasks.list"),
        (("tasks.sampling=list", "tasks.list=[delay]", "tasks.weights=[2]"), "tasks.weights"),
        (("tasks.floor=0.2",), "tasks.floor"),
        (("trainer.members=161",), "trainer.members"),
        (("trainer.members=2", "schedule.streaming=true"), "trainer.micro_batch"),
    ],
)
def test_each_setting_without_effect_is_named_with_a_remedy(overrides: tuple[str, ...], field: str) -> None:
    found = warned(*overrides)
    assert field in found
    assert "\n" not in found[field]


def test_learning_that_never_touches_the_policy_is_named() -> None:
    found = {f.field for f in findings(Assembly(load_config("reach", ["trainer.updates=2"])), 2)}
    assert {"learner.options.value_warm_up", "learner.options.schedule_versions"} <= found


@pytest.mark.parametrize(
    ("overrides", "field", "text"),
    [
        (["lr=0"], "lr", "0: the policy never changes, which is of use in tests only; set it above 0"),
        (["value_lr=0"], "value_lr", "0: the value head never changes, which is of use in tests only"),
        (["minibatch=481"], "minibatch", "481 is more than the 480 chunks of an update: every pass is one"),
        (["min_ess=0.1"], "min_ess", "without lag every chunk has the weight 1, and all are effective"),
    ],
)
def test_learning_with_settings_that_cannot_do_what_they_say(overrides, field, text) -> None:
    settings = [f"learner.options.{override}" for override in overrides]
    found = {
        f.field: f.text for f in findings(Assembly(load_config("reach", ["schedule.mode=as", *settings])), 2)
    }
    assert found[f"learner.options.{field}"].startswith(text)


def test_learning_with_settings_at_their_limits_is_not_named() -> None:
    """Of batches of 48 episodes of at most 10 chunks; with a lag weights differ, whatever the correction."""
    limits = ("minibatch=480", "min_ess=0.1", "lr=1e-9")
    settings = [f"learner.options.{limit}" for limit in limits]
    assert not findings(Assembly(load_config("reach", [*settings, "algorithm.options.correction=none"])), 2)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["generator.threads=3"], "generator.threads"),
        (["trainer.threads=3"], "trainer.threads"),
        (["simulator.members=4"], "simulator.members"),
    ],
)
def test_more_threads_than_cores_are_named(overrides: list[str], field: str) -> None:
    assert field in {f.field for f in findings(Assembly(load_config("reach", overrides)), 2)}


@pytest.mark.parametrize(
    ("setting", "costs"),
    [
        ("step_timeout_s", {"sub_step_s": 1.0}),
        ("inference_timeout_s", {"inference_s": 1.0}),
        ("update_timeout_s", {"train_per_chunk_s": 0.01}),
    ],
)
def test_timeouts_shorter_than_the_known_cost_are_named(setting: str, costs: dict[str, float]) -> None:
    values = {"sub_step_s": 0.001, "sub_step_cv": 0.0} | costs
    found = findings(assembly(f"health.{setting}=2"), 8, Costs(**values))
    assert f"health.{setting}" in {f.field for f in found}
    assert f"health.{setting}" not in {f.field for f in findings(assembly(), 8, Costs(**values))}


def test_expected_speed_is_that_of_the_benchmark() -> None:
    costs = Costs(
        sub_step_s=0.005,
        sub_step_cv=1.0,
        inference_s=0.02,
        inference_per_sample_s=0.001,
        train_per_chunk_s=0.0023,
    )
    assert predict(assembly(), costs, 6).trained_steps_per_s == pytest.approx(434, rel=0.02)


def test_the_command_prints_and_writes_every_number(tmp_path: Any, capsys: Any) -> None:
    profile, figures = tmp_path / "costs.json", tmp_path / "figures.json"
    profile.write_text('{"sub_step_s": 0.005, "sub_step_cv": 1, "inference_s": 0.02}')
    with pytest.raises(SystemExit) as end:
        main(f"check schedule-benchmark simulator.lanes=40 --profile {profile} --json {figures}".split())
    assert end.value.code == 0
    printed = capsys.readouterr().out
    rows = json.loads(figures.read_text())["rows"]
    for row in rows:
        assert row["name"] in printed
    assert {"expected_steps_per_s", "expected_hours", "slab"} <= {row["name"] for row in rows}
    assert next(row for row in rows if row["name"] == "warnings")["value"] == 1
    assert "warning: simulator.lanes: " in printed


def test_options_that_a_kind_drops_are_a_notice_and_no_warning(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check", "reach-grpo", "algorithm.kind=rloo"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    (notice,) = (line for line in lines if line.startswith("notice: "))
    lost = "algorithm.options.group_size=8, algorithm.options.score=success; give again what should hold"
    assert notice.endswith(f"algorithm.kind=rloo leaves out what reach-grpo sets for the kind grpo: {lost}")
    assert lines[-1] == "warnings: 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"sub_step_s": 1}', "sub_step_cv must be given"),
        ('{"sub_step_s": 1, "sub_step_cv": "x"}', "sub_step_cv must be seconds"),
        ('{"sub_step_s": 1, "sub_step_cv": 1, "fast": 1}', "fast is no cost"),
    ],
)
def test_a_bad_profile_is_refused_in_one_line(text: str, message: str, tmp_path: Any) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_costs(path)
    assert "\n" not in str(error.value)


SMALL = st.integers(1, 5)


@settings(max_examples=60, deadline=None)
@given(
    members=st.integers(1, 3),
    envs=st.integers(1, 7),
    batches=st.integers(1, 3),
    slots=st.one_of(SMALL, st.lists(SMALL, min_size=1, max_size=3).map(tuple)),
    lanes=SMALL,
    generators=st.integers(1, 3),
    max_batch_size=st.integers(1, 12),
    batch=st.integers(1, 12),
    micro_batch=st.integers(1, 12),
    chunks=st.integers(1, 3),
    mode=st.sampled_from(["ss", "as", "aa_barrier", "aa"]),
    max_lag=st.integers(1, 3),
    routing=st.sampled_from(["any", "least_loaded", "pinned"]),
    deterministic=st.booleans(),
)
def test_any_counts_run_exactly_or_fail_at_once(**c: Any) -> None:
    tree = {
        "schedule": {"mode": c["mode"], "max_lag": c["max_lag"], "deterministic": c["deterministic"]},
        "simulator": {
            "kind": "synthetic",
            "options": {"task": "delay"},
            "chunk": 2,
            **{name: c[name] for name in ("members", "envs", "batches", "slots", "lanes")},
        },
        "generator": {
            "members": c["generators"],
            "max_batch_size": c["max_batch_size"],
            "routing": c["routing"],
        },
        "trainer": {
            "trajectory": "segment",
            "bootstrap": "trainer",
            "updates": 2,
            **{name: c[name] for name in ("batch", "micro_batch", "chunks")},
        },
        "policy": {"kind": "emulated"},
        "learner": {"kind": "emulated"},
    }
    try:
        config = Config.model_validate(tree)
    except ValueError as error:
        assert any(word in str(error) for word in ("nearest", "use ", "must lie in", "needs a mode"))
        return
    _runs_exactly(Assembly(config))


def _runs_exactly(whole: Assembly) -> None:
    config, engine = whole.config, whole.settings
    envs = [env for slot in engine.topology.slots for env in slot.envs]
    assert sorted(envs) == list(range(config.simulator.total_envs))
    assert max(len(slot.envs) for slot in engine.topology.slots) <= engine.batching.max_batch_size
    assert engine.rows >= min(config.trainer.batch * (config.schedule.lag + 1), len(envs))
    assert derived(whole)
    assert isinstance(findings(whole, 2), list)
    done = predict(whole, COSTS, 1).engine
    assert done.statistics.trained == 2 * config.trainer.batch
    assert done.intake.version == 2


def missing(recipe: str, *overrides: str) -> dict[str, str]:
    made = Assembly(load_config(recipe, list(overrides)))
    return {finding.field: finding.text for finding in lacking(made.config, made.spec, derived(made))}


def test_what_this_machine_lacks() -> None:
    assert missing("reach") == {}
    assert (
        "lower simulator.members or envs"
        in missing("reach", "simulator.envs=100000", "simulator.slots=10000")["memory"]
    )
    assert "MiB left" in missing("reach", "policy.options.width=8192", "policy.options.layers=256")["memory"]


def test_a_simulators_device_is_like_any_other() -> None:
    gpu = ("simulator.options.backend=gpu", "simulator.slots=1", "generator.max_batch_size=8")
    asked = "simulator.options.backend"
    made = Assembly(load_config("maniskill", list(gpu)))
    found = {f.field: f.text for f in machine.simulator_device(made.config, made.spec)}
    assert (asked in found) != has_cuda()
    assert has_cuda() or found[asked].startswith("gpu needs a CUDA device, and torch sees none here")
    elsewhere = made.config.model_copy(
        update={"simulator": made.config.simulator.model_copy(update={"python": "/elsewhere/bin/python"})}
    )
    assert not list(machine.simulator_device(elsewhere, made.spec))


@pytest.mark.parametrize("field", ["generator.device", "trainer.device"])
def test_a_device_that_is_not_there(field: str) -> None:
    found = missing("reach", f"{field}=cuda:77")
    assert found[field].startswith("cuda:77: torch cannot use it here") and "use auto or cpu" in found[field]
    assert missing("schedule-benchmark", f"{field}=cuda:77") == {}  # nothing of it uses torch


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_package_that_is_not_there() -> None:
    assert "pip install 'rlvla3[wandb]'" in missing("reach", "log.wandb=online")["log.wandb"]


def test_the_size_of_the_tiny_policy_is_estimated_from_its_architecture() -> None:
    """Within a tenth of the presets' own names, 1.4 and 3.5 million numbers of 4 bytes."""
    for size in (1.4, 3.5):
        found = Assembly(load_config("reach", [f"policy.options.size={size}M"]))
        weights = next(row.value for row in derived(found) if row.name == "weights")
        assert weights * 2**20 / 4 == pytest.approx(size * 1e6, rel=0.1)


def test_rounds_where_nothing_waits() -> None:
    computing = Assembly(load_config("reach", ["simulator.round_ms=1"]))
    assert "simulator.round_ms" in {finding.field for finding in findings(computing, 8)}
    assert "simulator.round_ms" not in warned("simulator.round_ms=1")
