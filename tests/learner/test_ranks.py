"""Two and three ranks compute what one computes: gradient, weights, metrics; and go on from each other."""

import dataclasses

import numpy as np
import pytest
from rank_worlds import Plan, compute

pytestmark = pytest.mark.live

PLANS = {
    "ppo": Plan(),
    "ppo, the prefix trains": Plan(frozen=False),
    "grpo, streamed": Plan(algorithm="grpo", streaming=True),
    "ppo, streamed, in several passes, offloaded": Plan(
        streaming=True, options=(("forward_batch", 2), ("offload_optimiser", True))
    ),
    "ppo, weights shared": Plan(sharded=True),
    "ppo, weights shared, the prefix trains, in several passes": Plan(
        sharded=True, frozen=False, options=(("forward_batch", 2),)
    ),
    "grpo, weights shared, streamed": Plan(algorithm="grpo", sharded=True, streaming=True),
    "ppo, weights shared, prefixes stored, in several passes": Plan(
        sharded=True, stored=True, options=(("forward_batch", 2),)
    ),
    "values first, the prefix trains": Plan(
        frozen=False, options=(("value_warm_up", 1), ("value_passes", 2), ("weight_decay", 0.1))
    ),
    "values first, the prefix trains, weights shared, streamed": Plan(
        frozen=False, sharded=True, streaming=True, options=(("value_warm_up", 1), ("value_passes", 1))
    ),
    "vtrace, values anew, by episode, weights shared": Plan(
        algorithm="vtrace", sharded=True, options=(("recompute_values", True), ("aggregate", "episode"))
    ),
    "reinforce++, streamed with its own statistics": Plan(
        algorithm="reinforce++", streaming=True, options=(("streamed_statistics", "own"),)
    ),
    "shortened": Plan(options=(("target_kl", 1e-4), ("lr", 1e-3)), updates=1),
    "shortened, weights shared": Plan(sharded=True, options=(("target_kl", 1e-4), ("lr", 1e-3)), updates=1),
    "skipped": Plan(skips=1, streaming=True, options=(("min_ess", 0.5),)),
    "skipped, weights shared, streamed": Plan(
        algorithm="grpo", skips=1, sharded=True, streaming=True, options=(("min_ess", 0.5),)
    ),
    "fewer groups than ranks": Plan(trajectories=1, sharded=True),
}


def close(one, many) -> None:
    """Metrics and arrays agree to 1e-5."""
    for first, second in zip(one[0], many[0], strict=True):
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert second[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert one[1].keys() == many[1].keys()
    for name, array in one[1].items():
        np.testing.assert_allclose(many[1][name], array, atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Every plan on one, two and three ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    return {ranks: compute(folder / str(ranks), ranks, PLANS) for ranks in (1, 2, 3)}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", PLANS)
def test_ranks_compute_what_one_computes(computed, name, ranks) -> None:
    one = computed[1][name]
    assert any(np.abs(array).max() > 1e-4 for key, array in one[1].items() if key.startswith("gradient/"))
    close(one, computed[ranks][name])


def test_the_plans_skip_and_shorten(computed) -> None:
    for name in ("skipped", "skipped, weights shared, streamed"):
        assert [m["was_skipped"] for m in computed[1][name][0]] == [1.0, 0.0]
        assert computed[1][name][0][0]["start_ess"] < 0.5
    for name in ("shortened", "shortened, weights shared"):
        assert computed[1][name][0][0]["shortened_updates"] == 1.0


def test_a_run_goes_on_with_other_numbers_of_ranks(tmp_path) -> None:
    """2 → 3 → 1 → 2 ranks, one update each, as one rank all the way; weights on all ranks, or shared."""
    straight = compute(tmp_path / "straight", 1, {"": Plan(updates=4)})[""]
    metrics: dict[str, list] = {"whole": [], "shared": []}
    for part, ranks in enumerate((2, 3, 1, 2)):
        plans = {
            name: Plan(
                updates=1,
                sharded=name == "shared",
                load=str(tmp_path / f"{name}-{part - 1}") if part else "",
                save=str(tmp_path / f"{name}-{part}"),
            )
            for name in metrics
        }
        found = compute(tmp_path / f"part-{part}", ranks, plans)
        for name in metrics:
            metrics[name] += found[name][0]
    for name in metrics:
        close(_lasting(*straight), _lasting(metrics[name], found[name][1]))
        files = {path.name for path in (tmp_path / f"{name}-3").iterdir()}
        assert files == {path.name for path in (tmp_path / "whole-2").iterdir()}


def _lasting(metrics, arrays):
    """Without the first gradient, and the gap: where all chunks are older it needs the weights of before,
    which no checkpoint has."""
    metrics = [{name: value for name, value in each.items() if "gap" not in name} for each in metrics]
    return metrics, {name: array for name, array in arrays.items() if not name.startswith("gradient/")}


def test_plans_differ() -> None:
    assert len({dataclasses.astuple(plan) for plan in PLANS.values()}) == len(PLANS)
