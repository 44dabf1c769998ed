"""PaliGemma with an action expert, as modules with the names that checkpoints give them."""

from __future__ import annotations

import math

from torch import Tensor, nn

from rlvla3.policies.blocks.gemma import GemmaBody
from rlvla3.policies.blocks.siglip import VisionTower
from rlvla3.policies.pi.sizes import PiSizes


class Projector(nn.Module):
    """Patches in the width of the language model."""

    def __init__(self, sizes: PiSizes) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.vision.width, sizes.language.width)

    def forward(self, patches: Tensor) -> Tensor:
        """[B, S, vision width] → [B, S, language width]."""
        found: Tensor = self.linear(patches)
        return found


class LanguageModel(GemmaBody):
    """The prefix's transformer with its embeddings of tokens."""

    def __init__(self, sizes: PiSizes) -> None:
        super().__init__(sizes.language)
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.language.width)

    def embedded(self, tokens: Tensor) -> Tensor:
        """Tokens [B, S] → [B, S, W], scaled by √W as Gemma has it; pictures are not."""
        rows: Tensor = self.embed_tokens(tokens).float()
        return rows * math.sqrt(rows.shape[-1])


class PaligemmaModel(nn.Module):
    """Vision and language."""

    def __init__(self, sizes: PiSizes) -> None:
        super().__init__()
        self.vision_tower = VisionTower(sizes.vision)
        self.multi_modal_projector = Projector(sizes)
        self.language_model = LanguageModel(sizes)

    def seen(self, pixels: Tensor) -> Tensor:
        """Pictures [B, 3, side, side] in [−1, 1] → prefix tokens [B, S, W]."""
        found: Tensor = self.multi_modal_projector(self.vision_tower(pixels))
        return found


class Paligemma(nn.Module):
    """The language model without its output layer, which no action needs."""

    def __init__(self, sizes: PiSizes) -> None:
        super().__init__()
        self.model = PaligemmaModel(sizes)


class Expert(nn.Module):
    """The action expert without token embeddings and output layer."""

    def __init__(self, sizes: PiSizes, condition_width: int) -> None:
        super().__init__()
        self.model = GemmaBody(sizes.expert, condition_width)


class PaligemmaWithExpert(nn.Module):
    """Both transformers."""

    def __init__(self, sizes: PiSizes, *, adaptive: bool) -> None:
        super().__init__()
        self.paligemma = Paligemma(sizes)
        self.gemma_expert = Expert(sizes, sizes.expert.width if adaptive else 0)
