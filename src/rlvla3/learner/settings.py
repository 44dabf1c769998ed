"""What users set of the learners. Importing this module does not import torch."""

from typing import Literal

from pydantic import Field

from rlvla3.algorithms.schedules import Schedule
from rlvla3.settings import Settings

Aggregate = Literal["token", "episode"]
"""What counts the same in a loss."""


class ReinforcementSettings(Settings):
    """Settings of the reinforcement learner."""

    epochs: int = Field(default=4, ge=1)
    """Passes over an update's chunks."""
    minibatch: int = Field(default=128, ge=1)
    """Chunks of one optimiser step (the last of an epoch may be smaller)."""
    lr: float = Field(default=3e-5, ge=0)
    """Learning rate of the policy at the start."""
    value_lr: float = Field(default=1e-3, ge=0)
    """Learning rate of the value head at the start."""
    lr_schedule: Schedule = "linear"
    """How both rates fall over ``schedule_versions``."""
    lr_final: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the rates that is left at the end of the schedule and after it."""
    lr_warm_up: int = Field(default=0, ge=0)
    """Versions over which both rates rise linearly at the start."""
    schedule_versions: int = Field(default=60, ge=1)
    """Versions over which the rates fall."""
    schedule_s: float = Field(default=0.0, ge=0)
    """Seconds of training over which the rates fall at the latest, for runs with a time budget (whose
    number of versions depends on the machine); 0: by versions alone, which is reproducible."""
    value_warm_up: int = Field(default=2, ge=0)
    """First versions that train the value head only, while the policy stays as it is."""
    value_passes: int = Field(default=0, ge=0)
    """Passes of the value head alone, after the epochs. They cost next to nothing where the prefix is
    frozen, and better values make better advantages. During value_warm_up they replace the epochs."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    gradient_clip: float = Field(default=0.5, gt=0)
    """Bound on the norm of a step's gradient."""
    ema: float = Field(default=0.98, ge=0, lt=1)
    """Decay, for each optimiser step, of the averaged weights used for evaluation; 0: no average."""
    target_kl: float = Field(default=0.0, ge=0)
    """Trust region of an update: a minibatch whose mean KL from the behaviour policy exceeds this is not
    stepped, and the update ends there (counted as shortened), or is skipped if it is the first; 0: off."""
    min_ess: float = Field(default=0.0, ge=0, lt=1)
    """Least effective sample size of an update, as a fraction of its chunks, of the weights
    π_proximal/π_behaviour; an update below it is skipped and counted; 0: off."""
    aggregate: Aggregate = "token"
    """What counts the same in the loss: every element of the log-probs (a chunk, an action or a number, by
    the policy's ratio level), or every episode."""
    recompute_values: bool = False
    """Whether advantages use values of the present weights instead of those that the rollout recorded."""
    statistics_keep: float = Field(default=0.8, ge=0, lt=1)
    """How much of the running advantage statistics an update leaves in place. They normalise when
    streaming (see streamed_statistics)."""
    streamed_statistics: Literal["earlier", "own"] = "earlier"
    """What normalises advantages whose gradient is streamed. ``earlier``: statistics of earlier updates (the
    very first one does its first pass at its end, because there are none yet). ``own``: those of the
    update, put in when all are there, by gradients kept apart: exact, for about twice the backward passes."""
    forward_batch: int = Field(default=0, ge=0)
    """Chunks of one forward and backward pass: a minibatch is then accumulated from several, and summed over
    ranks once; 0: all of a minibatch that a rank holds."""
    offload_optimiser: bool = False
    """Whether the optimiser's state, and the weights that it steps, lie in host memory."""


class ImitationSettings(Settings):
    """Settings of supervised learning on demonstrations."""

    steps: int = Field(default=600, ge=1)
    """Optimiser steps."""
    budget_s: float = Field(default=0.0, ge=0)
    """Seconds after which training ends; 0: no limit. The rate then falls with the time used, so
    that it reaches its end with the budget (weights taken in mid-schedule are erratic); such a run
    is not reproducible bit by bit."""
    batch: int = Field(default=32, ge=1)
    """Observations of one step; the policy draws several noise samples for each."""
    lr: float = Field(default=1e-3, gt=0)
    """Highest learning rate."""
    warm_up: int = Field(default=50, ge=0)
    """Steps over which the rate rises linearly."""
    lr_final: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the rate left at the end of its cosine."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Bound on the norm of a step's gradient."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay, for each step, of averaged weights, which become the result; 0: no average."""
    threads: int = Field(default=1, ge=0)
    """Torch threads while training. Two help only on a machine with two idle cores (measured: 85
    against 144 ms a step; 850 ms and more if another process wants one of them); 0 leaves it."""
