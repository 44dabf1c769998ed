"""What Generators act with is what the Trainer published, and a difference is found."""

import bandit
import numpy as np
import pytest
import torch

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.messages import LoadWeights, Member, PublishWeights, SaveBest, Version
from rlvla3.policies import delivery
from rlvla3.policies.building import build_model
from rlvla3.policies.folding import fold
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.tiny import Tiny
from rlvla3.roles.generator import GeneratorRole
from rlvla3.roles.trainer import TrainerRole

GENERATOR, TRAINER = Member("generator-0"), Member("trainer-0")


def test_the_digest_counts_names_types_shapes_and_bits_but_not_the_order() -> None:
    zeros = np.zeros((2, 3), np.float32)
    same = [delivery.digest({"a": zeros, "b": zeros}), delivery.digest({"b": zeros, "a": zeros.copy("F")})]
    negative = zeros.copy()
    negative[0, 0] = -0.0
    others = [
        delivery.digest({"a": zeros, "c": zeros}),
        delivery.digest({"a": zeros, "b": zeros.T}),
        delivery.digest({"a": zeros, "b": zeros.view(np.int32)}),
        delivery.digest({"a": zeros, "b": negative}),
        delivery.digest({"a": zeros}),
        delivery.digest({"a": zeros, "b": zeros}, b"base"),
    ]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 7


class World:
    """A Trainer and a Generator with a dictionary between them."""

    def __init__(self, publish="trained", rank=4, generator_seed=0, ema=0.9) -> None:
        self.policy = Tiny(bandit.SMALL, bandit.INTERFACE)
        self.settings = ModelSettings(lora=LoraSettings(rank=rank), publish=publish)
        self.buffers: dict = {}
        self.best: dict = {}
        model = build_model(self.policy, self.settings, "cpu", 0, "train")
        settings = ReinforcementSettings(lr=1e-3, value_warm_up=0, minibatch=16, epochs=1, ema=ema)
        self.learner = Reinforcement(model, PPO(PPOSettings(gamma=0.0)), settings, seed=0)
        self.trainer = TrainerRole(
            member=TRAINER,
            build=lambda: self.learner,
            weights=self,
            keeper=self,
            first=True,
            slab={},
            emit=lambda event: None,
            report=lambda source, values: None,
        )
        self.generator = GeneratorRole(
            member=GENERATOR,
            build=lambda: build_model(self.policy, self.settings, "cpu", generator_seed, "serve"),
            weights=self,
            slab={},
            seed=0,
            emit=lambda event: None,
            initial=None,
            pad_to=0,
        )
        self.trainer.start()
        self.generator.start()

    def write(self, channel, buffer, version, weights) -> None:
        self.buffers[channel] = {name: np.array(array) for name, array in weights.items()}

    def read(self, channel, buffer, version):
        return {name: array.copy() for name, array in self.buffers[channel].items()}

    def save_best(self, version, weights, score) -> None:
        self.best = dict(weights)

    def train(self, update: int) -> None:
        trajectories, slab = bandit.rollout(
            self.learner.model, 4, 1, version=self.learner.version, first=4 * update
        )
        self.learner.ingest(trajectories, slab)
        assert not self.learner.update().skipped

    def publish(self, channel="rollout") -> None:
        version = Version(self.learner.version)
        self.trainer.handle(PublishWeights(member=TRAINER, channel=channel, version=version, buffer=0))

    def load(self, channel="rollout") -> None:
        version = Version(self.learner.version)
        self.generator.handle(LoadWeights(member=GENERATOR, channel=channel, version=version, buffer=0))

    def effective(self, model) -> dict:
        """The weights that a model computes with."""
        layers = dict(model.named_modules())
        return {
            name: layers[name.removesuffix(".weight")].effective().detach().numpy()
            if hasattr(layers.get(name.removesuffix(".weight")), "effective")
            else parameter.detach().numpy().copy()
            for name, parameter in model.named_parameters()
            if "lora" not in name
        }


def deliver(world: World, publishes: int) -> None:
    base = {name: array.copy() for name, array in world.learner.base().items()}
    checksums = set()
    for update in range(publishes):
        world.train(update)
        world.publish()
        world.load()
        checksums.add(world.buffers["rollout"][delivery.CHECKSUM].tobytes())
        mine = world.effective(world.learner.model)
        theirs = world.effective(world.generator._models["rollout"])
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(array, theirs[name]) for name, array in mine.items())
        for held in (world.learner.base(), getattr(world.generator._models["rollout"], "base", dict)()):
            assert all(np.array_equal(array, base[name]) for name, array in held.items())
    assert len(checksums) == publishes, "every version differs"


@pytest.mark.parametrize(("publish", "rank"), [("trained", 4), ("trained", 0), ("whole", 4), ("whole", 0)])
def test_publishes_arrive_exactly(publish, rank) -> None:
    deliver(World(publish, rank), 3)


@pytest.mark.long
@pytest.mark.parametrize(("publish", "rank"), [("trained", 4), ("trained", 0), ("whole", 4)])
def test_a_hundred_publishes_arrive_exactly(publish, rank) -> None:
    deliver(World(publish, rank), 100)


def test_only_what_trains_is_sent() -> None:
    world = World()
    world.publish()
    sent = world.buffers["rollout"]
    assert sent.keys() - {delivery.CHECKSUM} == {n for n, _ in world.learner.model.trainable("reinforcement")}
    whole = sum(a.nbytes for a in world.learner.base().values())
    assert sum(a.nbytes for n, a in sent.items() if "value_head" not in n) < 0.2 * whole


@pytest.mark.parametrize("publish", ["trained", "whole"])
def test_averaged_weights_are_delivered_and_kept_whole_as_the_best(publish) -> None:
    """The best weights load into a plain policy, which acts as the evaluated one did."""
    world = World(publish)
    world.train(0)
    world.train(1)
    world.publish("evaluation")
    world.load("evaluation")
    version = Version(world.learner.version)
    world.train(2)
    world.trainer.handle(SaveBest(member=TRAINER, version=version, score=1.0))
    plain = world.policy.build("cpu", 9)
    plain.load_arrays(world.best)
    observation, keys = bandit.observations(4), bandit.keys(4)
    evaluated = world.generator._models["evaluation"].act(observation, keys, False)
    np.testing.assert_allclose(plain.act(observation, keys, False)["action"], evaluated["action"], atol=1e-5)
    newest = fold({n: t.numpy() for n, t in world.learner.model.state_dict().items()})
    assert not np.array_equal(newest["expert_blocks.0.up.weight"], world.best["expert_blocks.0.up.weight"])


def test_a_base_that_differs_is_found() -> None:
    world = World(generator_seed=1)
    world.publish()
    with pytest.raises(delivery.DeliveryError, match=r"version 0 for rollout.*another seed"):
        world.load()


def test_one_bit_of_the_base_is_found() -> None:
    world = World()
    weight = world.generator._models["rollout"].words.weight
    with torch.no_grad():
        weight[3, 3] = torch.nextafter(weight[3, 3], torch.tensor(9.0))
    world.publish()
    with pytest.raises(delivery.DeliveryError):
        world.load()


def test_an_adapter_that_stays_behind_is_found() -> None:
    world = World()
    world.publish()
    world.load()
    model = world.generator._models["rollout"]
    load, late = model.load_arrays, "expert_blocks.1.down.lora_up"

    def forgetful(weights) -> None:
        load({**weights, late: model.arrays()[late]})

    model.load_arrays = forgetful
    world.load()
    world.train(0)
    world.publish()
    with pytest.raises(delivery.DeliveryError, match="version 1 for rollout"):
        world.load()


def test_other_scales_are_found() -> None:
    world = World()
    world.settings = ModelSettings(lora=LoraSettings(rank=4, alpha=8.0), publish="trained")
    world.generator.start()
    world.publish()
    with pytest.raises(delivery.DeliveryError):
        world.load()
