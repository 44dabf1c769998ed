"""Names and shapes of the networks' parameters, known without torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rlvla3.policies.blocks.sizes import GemmaSizes, VisionSizes
from rlvla3.policies.pi.settings import PiSettings
from rlvla3.policies.pi.sizes import PiSizes

Shapes = Iterator[tuple[str, tuple[int, ...]]]
NOISE_NET = "noise_net."
VALUE_HEAD = "value_head."
_LANGUAGE = "paligemma_with_expert.paligemma.model.language_model."
_EXPERT = "paligemma_with_expert.gemma_expert.model."
EXPERT_PARTS = ("paligemma_with_expert.gemma_expert.", "action_", "state_proj.", "time_mlp_", NOISE_NET)
PARTS = {"expert": EXPERT_PARTS, "language": (*EXPERT_PARTS, _LANGUAGE), "all": ("",)}
"""Beginnings of the names that each choice of ``train`` lets change; the value head always does."""


def parameters(settings: PiSettings, sizes: PiSizes, *, adaptive: bool) -> Shapes:
    """Every parameter of a network; ``adaptive``: of π0.5."""
    model, width = "paligemma_with_expert.paligemma.model.", sizes.language.width
    yield from _vision(f"{model}vision_tower.vision_model.", sizes.vision)
    yield from _linear(f"{model}multi_modal_projector.linear", sizes.vision.width, width)
    yield f"{_LANGUAGE}embed_tokens.weight", (sizes.vocabulary, width)
    yield from _gemma(_LANGUAGE, sizes.language, 0)
    expert = sizes.expert.width
    yield from _gemma(_EXPERT, sizes.expert, expert if adaptive else 0)
    yield from _linear("action_in_proj", sizes.action_width, expert)
    yield from _linear("action_out_proj", expert, sizes.action_width)
    if adaptive:
        yield from _linear("time_mlp_in", expert, expert)
        yield from _linear("time_mlp_out", expert, expert)
    else:
        yield from _linear("state_proj", sizes.state_width, expert)
        yield from _linear("action_time_mlp_in", 2 * expert, expert)
        yield from _linear("action_time_mlp_out", expert, expert)
    inputs = (width if adaptive else expert) + sizes.state_width + 1
    yield from _perceptron(f"{VALUE_HEAD}layers.", (inputs, *sizes.value_head, 1))
    if settings.method == "noise":
        yield from _perceptron(f"{NOISE_NET}layers.", (expert, 128, 64, sizes.action_width))


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _perceptron(name: str, widths: tuple[int, ...]) -> Shapes:
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        yield from _linear(f"{name}{2 * index}", inputs, outputs)


def _vision(name: str, sizes: VisionSizes) -> Shapes:
    width = sizes.width
    yield f"{name}embeddings.patch_embedding.weight", (width, 3, sizes.patch, sizes.patch)
    yield f"{name}embeddings.patch_embedding.bias", (width,)
    yield f"{name}embeddings.position_embedding.weight", (sizes.tokens, width)
    for level in range(sizes.depth):
        layer = f"{name}encoder.layers.{level}."
        for norm in ("layer_norm1", "layer_norm2"):
            yield from _norm(f"{layer}{norm}", width)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}self_attn.{part}", width, width)
        yield from _linear(f"{layer}mlp.fc1", width, sizes.mlp)
        yield from _linear(f"{layer}mlp.fc2", sizes.mlp, width)
    yield from _norm(f"{name}post_layernorm", width)


def _norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _gemma(name: str, sizes: GemmaSizes, condition_width: int) -> Shapes:
    width, inner, shared = sizes.width, sizes.heads * sizes.head_size, sizes.groups * sizes.head_size
    for level in range(sizes.depth):
        layer = f"{name}layers.{level}."
        for part, outputs in (("q_proj", inner), ("k_proj", shared), ("v_proj", shared)):
            yield from _linear(f"{layer}self_attn.{part}", width, outputs, bias=False)
        yield from _linear(f"{layer}self_attn.o_proj", inner, width, bias=False)
        yield from _linear(f"{layer}mlp.gate_proj", width, sizes.mlp, bias=False)
        yield from _linear(f"{layer}mlp.up_proj", width, sizes.mlp, bias=False)
        yield from _linear(f"{layer}mlp.down_proj", sizes.mlp, width, bias=False)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield from _rms(f"{layer}{norm}", width, condition_width)
    yield from _rms(f"{name}norm", width, condition_width)


def _rms(name: str, width: int, condition_width: int) -> Shapes:
    if condition_width:
        yield from _linear(f"{name}.dense", condition_width, 3 * width)
    else:
        yield f"{name}.weight", (width,)


def is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is the weight of a linear layer."""
    return (
        name.endswith(".weight")
        and len(shape) == 2
        and not name.endswith("embedding.weight")
        and (not name.endswith("embed_tokens.weight"))
    )
