"""The weights of the built-in model: random, but the same bytes on every host.

Owns the drawing. They come from our own integer noise, since generators of libraries may change
with their versions. Must not know files.

A purely random model never stops and speaks in broken bytes. So dimension 0 of the residual
stream is a constant that no layer writes to, and the head reads it as a bias: the end of the turn
gets a bonus (an answer is about a hundred tokens long), whatever is no text by itself a malus. The
constant is small after the end of a line, where the template asks for an answer: none is empty.
"""

from collections.abc import Collection
from typing import Any, Final

import torch
from torch import Tensor

from kernels.philox import uniform_noise

SEED: Final = 12
"""Chosen among a dozen for the length of its answers."""

HIDDEN: Final = 64
INNER: Final = 192
NUM_LAYERS: Final = 2
NUM_HEADS: Final = 4
NUM_KV_HEADS: Final = 2
HEAD_DIM: Final = 16

_CONSTANT: Final = 4.0
_CONSTANT_AFTER_LINE: Final = 1.0
_LOGIT_STD: Final = 2.0
_END_BONUS: Final = 2.55
_MALUS: Final = -12.0
_UNIT_UNIFORM_WIDTH: Final = 12**0.5
"""The width of a uniform distribution of variance 1."""


def config(vocab_size: int, context_length: int, eos_id: int, pad_id: int) -> dict[str, Any]:
    """What config.json says."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "dtype": "float32",
        "eos_token_id": eos_id,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": context_length,
        "model_type": "qwen3",
        "num_attention_heads": NUM_HEADS,
        "num_hidden_layers": NUM_LAYERS,
        "num_key_value_heads": NUM_KV_HEADS,
        "pad_token_id": pad_id,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "vocab_size": vocab_size,
    }


def make_weights(
    vocab_size: int, eos_id: int, silent_ids: Collection[int], line_ids: Collection[int]
) -> dict[str, Tensor]:
    """All tensors by their published names, float32. `silent_ids` are hardly ever produced, and
    after `line_ids` the turn does not end.
    """
    draw = _Draw()
    embedding = draw(vocab_size, HIDDEN, std=1.0)
    embedding[:, 0] = _CONSTANT
    embedding[list(line_ids), 0] = _CONSTANT_AFTER_LINE
    head = draw(vocab_size, HIDDEN, std=_LOGIT_STD / HIDDEN**0.5)
    head[:, 0] = 0.0
    head[list(silent_ids), 0] = _MALUS
    head[eos_id, 0] = _END_BONUS
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for index in range(NUM_LAYERS):
        for name, tensor in _layer(draw).items():
            weights[f"model.layers.{index}.{name}.weight"] = tensor
    return weights


def _layer(draw: "_Draw") -> dict[str, Tensor]:
    queries, keys = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    in_std, inner_std = 1.0 / HIDDEN**0.5, 1.0 / INNER**0.5
    out = draw(HIDDEN, queries, std=in_std)
    down = draw(HIDDEN, INNER, std=2.0 * inner_std)
    out[0], down[0] = 0.0, 0.0
    return {
        "input_layernorm": torch.ones(HIDDEN),
        "self_attn.q_proj": draw(queries, HIDDEN, std=in_std),
        "self_attn.k_proj": draw(keys, HIDDEN, std=in_std),
        "self_attn.v_proj": draw(keys, HIDDEN, std=2.0 * in_std),
        "self_attn.q_norm": torch.ones(HEAD_DIM),
        "self_attn.k_norm": torch.ones(HEAD_DIM),
        "self_attn.o_proj": out,
        "post_attention_layernorm": torch.ones(HIDDEN),
        "mlp.gate_proj": draw(INNER, HIDDEN, std=in_std),
        "mlp.up_proj": draw(INNER, HIDDEN, std=in_std),
        "mlp.down_proj": down,
    }


class _Draw:
    """Draws one matrix after another, each from its own part of the noise."""

    def __init__(self) -> None:
        self._num_drawn = 0

    def __call__(self, rows: int, columns: int, *, std: float) -> Tensor:
        part = torch.tensor([self._num_drawn])
        self._num_drawn += 1
        noise = uniform_noise(torch.tensor([SEED]), part, rows * columns)
        return ((noise - 0.5) * (std * _UNIT_UNIFORM_WIDTH)).view(rows, columns)
