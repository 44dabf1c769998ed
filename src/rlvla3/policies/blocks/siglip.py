"""The vision transformer of SigLIP (arXiv 2303.15343); names as published."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies.blocks.attention import attend, split_heads
from rlvla3.policies.blocks.sizes import VisionSizes


class VisionAttention(nn.Module):
    """Attention between all patches."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.head_size = sizes.width // sizes.heads
        self.q_proj = nn.Linear(sizes.width, sizes.width)
        self.k_proj = nn.Linear(sizes.width, sizes.width)
        self.v_proj = nn.Linear(sizes.width, sizes.width)
        self.out_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, W] → [B, S, W]."""
        queries, keys, values = (
            split_heads(project(x), self.head_size) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        found: Tensor = self.out_proj(attend(queries, keys, values, None))
        return found


class VisionMLP(nn.Module):
    """Two layers with GELU in its tanh form."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.mlp)
        self.fc2 = nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, W] → [B, S, W]."""
        found: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return found


class VisionLayer(nn.Module):
    """One block."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(sizes.width, eps=1e-6)
        self.self_attn = VisionAttention(sizes)
        self.layer_norm2 = nn.LayerNorm(sizes.width, eps=1e-6)
        self.mlp = VisionMLP(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, W] → [B, S, W]."""
        x = x + self.self_attn(self.layer_norm1(x))
        found: Tensor = x + self.mlp(self.layer_norm2(x))
        return found


class VisionEmbeddings(nn.Module):
    """Patches and where they are."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.position_embedding = nn.Embedding(sizes.tokens, sizes.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, 3, side, side] → [B, S, W]."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        # In float32, also where the weights are held in less: the sum is what every block adds to.
        found: Tensor = patches.float() + self.position_embedding.weight.float()
        return found


class VisionEncoder(nn.Module):
    """All blocks."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.depth))


class VisionTransformer(nn.Module):
    """Pixels in, one vector for each patch out."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(sizes)
        self.encoder = VisionEncoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, side, side] in [−1, 1] → patches [B, S, W]."""
        x = self.embeddings(pixels.to(self.embeddings.patch_embedding.weight.dtype))
        for layer in self.encoder.layers:
            x = layer(x)
        found: Tensor = self.post_layernorm(x)
        return found


class VisionTower(nn.Module):
    """The transformer under the name that checkpoints give it."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.vision_model = VisionTransformer(sizes)

    def forward(self, pixels: Tensor) -> Tensor:
        """As the transformer."""
        found: Tensor = self.vision_model(pixels)
        return found
