"""What every flow-matching network does alike: act, evaluate, imitate. The mathematics is in ``flow``.

Letters: B batch, M flow samples of one observation, H denoised actions, D their network width, C executed
ones, A real dimensions, W stochastic steps.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.policies import flow
from rlvla3.policies.api import Arrays, Evaluation, NoiseKey
from rlvla3.policies.flow_settings import FlowSettings, flow_law
from rlvla3.policies.noise import draw_flow_noise
from rlvla3.policies.publishing import PublishedModule, as_array

Context = TypeVar("Context")
"""What a family computes of observations once for all denoise steps: keys and values, proprioception, …"""


class FlowModel(PublishedModule, Generic[Context]):
    """A family defines what is abstract here, and gets the rest of ``rlvla3.policies.api.PolicyModel``."""

    def set_flow(self, settings: FlowSettings, shape: tuple[int, int], executed: tuple[int, int]) -> None:
        """Fix how chunks are denoised.

        Args:
            settings: of the policy.
            shape: (H, D).
            executed: (C, A).
        """
        self.law = flow_law(settings)
        self.flow_shape = shape
        self.flow_samples = settings.flow_samples
        self.reduction = flow.Reduction(
            chunk=executed[0],
            action_dim=executed[1],
            level=settings.ratio_level,
            chunk_reduce=settings.chunk_reduce,
            dim_reduce=settings.dim_reduce,
        )

    # --- what a family defines --------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        raise NotImplementedError

    def context(self, observation: Arrays, prefix: tuple[Tensor, ...] = ()) -> Context:
        """Everything that does not change from one denoise step to the next; from ``prefix`` what that
        kept."""
        raise NotImplementedError

    def predict(self, x: Tensor, time: Tensor, context: Context) -> flow.Prediction:
        """Velocity [B, M, H, D] of noisy chunks [B, M, H, D] at times [B, M], and what ``noise`` needs."""
        raise NotImplementedError

    def value_of(self, context: Context) -> Tensor:
        """V(s) [B], the same in rollout and update."""
        raise NotImplementedError

    def to_env(self, chunk: Tensor, observation: Arrays) -> npt.NDArray[np.float32]:
        """Denoised chunks [B, H, D] → actions [B, C, A] in env units."""
        raise NotImplementedError

    def from_env(self, actions: npt.NDArray[np.float32], observation: Arrays) -> tuple[Tensor, Tensor]:
        """Demonstrated [B, C, A] → what would have been denoised [B, H, D], and what of it is known:
        bool [H, D]."""
        raise NotImplementedError

    def stored(self, context: Context) -> dict[str, npt.NDArray[Any]]:
        """Record fields besides those of every flow policy; none."""
        return {}

    # --- what follows -----------------------------------------------------------------------

    @torch.inference_mode()
    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Action records by ``record_spec`` name for raw observations [B, ...].

        The prefix is computed once for all denoise steps. Noise comes from ``keys`` alone, so a
        record does not depend on the batch it was computed in (up to float rounding).
        """
        law, context = self.law, self.context(observation)
        noise = draw_flow_noise(keys, self.flow_shape, law.starts, law.window)
        start = self.tensor(noise.index).long()

        def network(x: Tensor, time: Tensor) -> flow.Prediction:
            velocity, raw = self.predict(x[:, None], time[:, None], context)
            return velocity[:, 0], None if raw is None else raw[:, 0]

        initial, step_noise = self.tensor(noise.initial), self.tensor(noise.step)
        chain = flow.sample(network, initial, step_noise, start, law, explore=explore)
        log_prob, _ = law.log_prob(chain.points, chain.prediction, start)
        return {
            **self.stored(context),
            "action": self.to_env(chain.final, observation),
            "chain": as_array(chain.points),
            "step_index": noise.index,
            "log_prob": as_array(self.reduction(log_prob)),
            "value": as_array(self.value_of(context)),
        }

    def evaluate(self, prefix: Any, observation: Arrays, record: Arrays) -> Evaluation:
        """Log-prob (by ratio level), entropy (zeros but for ``noise``) and value [B] of stored records."""
        context = self.context(observation, prefix)
        chain = self.tensor(record["chain"])
        start = self.tensor(record["step_index"]).long()
        time = flow.times(self.law.indices(start), self.law.steps)
        log_prob, entropy = self.law.log_prob(chain, self.predict(chain[:, :-1], time, context), start)
        return Evaluation(
            log_prob=self.reduction(log_prob),
            entropy=self.reduction.of_chunk(entropy),
            value=self.value_of(context),
        )

    @torch.inference_mode()
    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """V(s) [B] of raw observations, the number that ``act`` records."""
        return as_array(self.value_of(self.context(observation)))

    def value(self, prefix: Any, observation: Arrays) -> Tensor:
        """V(s) [B] with gradient, from what ``prefix`` kept."""
        return self.value_of(self.context(observation, prefix))

    def imitation_loss(
        self, observation: Arrays, actions: npt.NDArray[np.float32], generator: torch.Generator
    ) -> Tensor:
        """Flow-matching loss of demonstrated chunks [B, C, A] in env units.

        ``flow_samples`` noise samples share each prefix. Flow time follows t = u^(2/3), the
        density of Beta(1.5, 1) that π0 trains with (more weight near the noise end).
        """
        context = self.context(observation)
        target, known = self.from_env(actions, observation)
        shape = (len(target), self.flow_samples, *self.flow_shape)
        noise = torch.randn(shape, generator=generator).to(self.device)
        uniform = torch.rand(shape[:2], generator=generator).to(self.device)
        time = 0.001 + 0.999 * uniform ** (2.0 / 3.0)
        x, goal = flow.imitation_pair(target[:, None], noise, time)
        error = (self.predict(x, time, context)[0].float() - goal).square()
        return error[..., known].mean()

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """An array on the network's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def own_sample_only(samples: int, tokens: int, device: torch.device) -> Tensor:
    """Bool [M·Q, M·Q]: whether two suffix tokens are of the same flow sample."""
    sample = torch.arange(samples, device=device).repeat_interleave(tokens)
    return sample[:, None] == sample[None]
