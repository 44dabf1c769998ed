"""From raw observations to what the networks read, and from what they say to actions. No torch.

Normalisation is the network's own: its statistics travel with the weights.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from rlvla3.policies.api import Arrays, PolicyInterface
from rlvla3.policies.pi import prompts
from rlvla3.policies.pi.settings import PiSettings
from rlvla3.policies.pi.sizes import PiSizes
from rlvla3.transforms.composing import compose
from rlvla3.transforms.expecting import Expectation, Picture

Floats = npt.NDArray[np.float32]
Tokens = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]
"""Tokens [B, prompt length], and which of them are there."""


class Processing:
    """What goes between one simulator and the network."""

    def __init__(self, settings: PiSettings, sizes: PiSizes, interface: PolicyInterface) -> None:
        """Join them.

        Raises:
            UserError: they do not fit, or the tokenizer or a prompt's length does not.
        """
        self.settings, self.interface = settings, interface
        self.horizon = settings.horizon or sizes.horizon or interface.chunk
        expected = Expectation(
            cameras=settings.cameras,
            picture=Picture(height=sizes.vision.image, width=sizes.vision.image, antialias=False),
            horizon=self.horizon,
        )
        self._inputs, self._outputs = compose(
            interface.meaning, expected, interface.chunk, concessions=settings.concessions
        )
        self._vocabulary = sizes.vocabulary
        self.state_size = self._inputs.size
        """n: proprioceptive numbers before padding."""
        self.action_size = self._outputs.pad.width
        """A: numbers of an action before padding."""

    def pictures(self, observation: Arrays) -> tuple[list[Floats], list[bool]]:
        """Pictures [B, side, side, 3] in [−1, 1] for each camera, and whether it is there."""
        read = self._inputs.apply(observation)
        return list(read.images.values()), list(read.shown.values())

    def state(self, observation: Arrays) -> Floats:
        """Proprioception [B, n] in the policy's units."""
        return np.asarray(self._inputs.raw_state(observation), np.float32)

    def to_env(self, said: Floats, observation: Arrays) -> Floats:
        """[B, H, A] in the policy's units → [B, C, A] of the simulator."""
        return np.asarray(self._outputs.apply(said, self.state(observation)), np.float32)

    def from_env(self, actions: Floats, observation: Arrays) -> Floats:
        """[B, C, A] of the simulator → [B, H, A] in the policy's units; the last one is repeated."""
        return np.asarray(self._outputs.invert(actions, self.state(observation)), np.float32)

    # --- prompts ----------------------------------------------------------------------------

    @cached_property
    def _tokenizer(self) -> prompts.Tokenizer:
        return prompts.tokenizer(self.settings.tokenizer, self._vocabulary)

    @cached_property
    def _instructions(self) -> Tokens:
        texts = map(prompts.plain, self.interface.instructions)
        return prompts.pad([self._tokenizer.encode(text) for text in texts], self.settings.prompt_length)

    def instruction_tokens(self, observation: Arrays) -> Tokens:
        """Each task's instruction [B, prompt length], and which tokens are there."""
        tokens, there = self._instructions
        tasks = np.asarray(observation["task"])
        return tokens[tasks], there[tasks]

    def state_tokens(self, observation: Arrays, state: Floats) -> Tokens:
        """Instruction and normalised proprioception [B, n]."""
        tasks = np.asarray(observation["task"])
        texts = [
            prompts.with_state(self.interface.instructions[task], numbers)
            for task, numbers in zip(tasks, state, strict=True)
        ]
        return prompts.pad([self._tokenizer.encode(text) for text in texts], self.settings.prompt_length)
