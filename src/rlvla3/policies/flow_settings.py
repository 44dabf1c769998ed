"""Settings of every flow-matching policy, and what follows from them. No torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from rlvla3.policies.flow import Law


class FlowSettings(Settings):
    """How action chunks are denoised, explored, and what of that shares an importance ratio."""

    denoise_steps: int = Field(default=4, ge=1)
    """N: network evaluations for one action chunk."""
    method: Literal["sde", "cps", "noise"] = "sde"
    """Law of the stochastic denoise steps in rollouts: flow-SDE, coefficients-preserving, or noise of a
    learned size at every step."""
    noise_level: float = Field(default=0.8, gt=0)
    """η: size of the exploration noise (``sde``; ``cps``, at most 1)."""
    noise_std: tuple[float, float] = (0.08, 0.16)
    """Bounds of the learned standard deviation (``noise``)."""
    window: int = Field(default=1, ge=1)
    """Consecutive stochastic denoise steps of a sample, at a place drawn for each (``sde``, ``cps``);
    ``noise`` has all of them."""
    include_prior: bool = True
    """Whether the log-prob includes that of the initial noise, where every step is stochastic. It cancels
    in ratios, so it matters for the mean of denoise_reduce only."""
    denoise_reduce: Literal["sum", "mean"] = "sum"
    """How log-probs of a sample's stochastic denoise steps are joined."""
    ratio_level: Literal["chunk_level", "action_level", "token_level"] = "chunk_level"
    """What shares one importance ratio: a chunk, one of its actions, or one number."""
    chunk_reduce: Literal["sum", "mean"] = "sum"
    """How log-probs of a chunk's actions are joined (``chunk_level``)."""
    dim_reduce: Literal["sum", "mean"] = "sum"
    """How log-probs of an action's dimensions are joined (not ``token_level``)."""
    flow_samples: int = Field(default=4, ge=1)
    """Noise samples for each observation of a supervised batch; they share its prefix."""
    action_scale: float = Field(default=1.0, gt=0)
    """Factor on every action; 1 but for comparisons (moving faster without learning)."""


def flow_law(settings: FlowSettings) -> Law:
    """Which denoise steps are stochastic, and how (imports torch)."""
    from rlvla3.policies.flow import Law

    return Law(
        method=settings.method,
        steps=settings.denoise_steps,
        window=window_of(settings),
        noise_level=settings.noise_level,
        noise_std=settings.noise_std,
        include_prior=settings.include_prior,
        denoise_reduce=settings.denoise_reduce,
    )


def window_of(settings: FlowSettings) -> int:
    """W: stochastic steps of a sample."""
    return settings.denoise_steps if settings.method == "noise" else settings.window


def check_law(settings: FlowSettings) -> None:
    """Refuse denoise steps that cannot be made.

    Raises:
        UserError: with the setting, the rule and the remedy.
    """
    steps, low, high = settings.denoise_steps, *settings.noise_std
    if settings.window > steps:
        raise UserError(
            f"policy.options.window = {settings.window} exceeds denoise_steps = {steps}; give at most {steps}"
        )
    if not 0 < low <= high:
        raise UserError(
            f"policy.options.noise_std = [{low:g}, {high:g}] must be a range [lowest, highest] with "
            "0 < lowest <= highest; the usual one is [0.08, 0.16]"
        )
    if settings.method == "noise" and settings.window > 1:
        raise UserError(
            f"policy.options.window = {settings.window}: method noise makes every denoise step stochastic; "
            "leave window out"
        )
    if settings.method == "cps" and settings.noise_level > 1:
        raise UserError(
            f"policy.options.noise_level = {settings.noise_level:g} must be at most 1 for method cps: above, "
            "sin(pi/2 x noise_level) falls again; lower it"
        )
    if settings.method == "cps" and steps == 1:
        raise UserError(
            "policy.options.denoise_steps = 1: the last step of method cps is deterministic, so nothing "
            "explores; use 2 or more"
        )


def record_of_flow(
    settings: FlowSettings, chunk: tuple[int, int], flow: tuple[int, int]
) -> tuple[FieldSpec, ...]:
    """What one chunk of a flow policy stores.

    Args:
        settings: of the policy.
        chunk: (C, A), executed actions in env units.
        flow: (H, D), what is denoised.
    """
    points = window_of(settings) + 1
    chosen = (
        FieldSpec(name="chain", shape=(points, *flow), dtype="float32"),
        FieldSpec(name="step_index", shape=(), dtype="int32"),
    )
    return record_of_chunk(settings, chunk, chosen)


def record_of_chunk(
    settings: FlowSettings, chunk: tuple[int, int], chosen: tuple[FieldSpec, ...]
) -> tuple[FieldSpec, ...]:
    """The record of a chunk (C, A); ``chosen``: what its log-prob is of."""
    level = {"chunk_level": 0, "action_level": 1, "token_level": 2}[settings.ratio_level]
    return (
        FieldSpec(name="action", shape=chunk, dtype="float32"),
        *chosen,
        FieldSpec(name="log_prob", shape=chunk[:level], dtype="float32"),
        FieldSpec(name="value", shape=(), dtype="float32"),
    )
