"""Models of a known shape whose weights are drawn, not read: only for measuring speed.

Owns the draw. A shape has no tokenizer, so the configuration of a served worker refuses it
(`config/checks.py`). Must not know the measurement.
"""

from typing import Final

import torch
from torch import Tensor

from workers.engine.models.model_config import Qwen3Config
from workers.engine.models.weights import LayerWeights, Qwen3Weights, quantised

_BRANCH_GAIN: Final = 2.0
"""Attention averages values and SwiGLU halves what goes through it."""

_KEY_NORM: Final = 2.0**0.5
"""Gain of queries and keys: scores spread by 2, so attention goes to few keys, not to all."""


def draw_weights(
    config: Qwen3Config,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    *,
    fp8: bool = False,
) -> Qwen3Weights:
    """Seeded normal weights, made where they stay. Milliseconds on a card.

    They are drawn so that answers can be checked: the first layer makes a state, to which all
    others together add as much again, each 1 / sqrt(2 layers). With equal layers every one would
    turn the sum of those before it around, and 36 of them make 5 % of the logits' spread out of the
    rounding of bfloat16; these make 2.5 %, and one layer without its MLP a tenth.

    `fp8`: the same weights with the layers' products in 8 bits.
    """
    # On a pretended device (`kernels.recorder`) nothing is drawn.
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int, gain: float = 1.0) -> Tensor:
        empty = torch.empty(shape, dtype=dtype, device=device)
        if generator is None:
            return empty
        return empty.normal_(0.0, gain * shape[-1] ** -0.5, generator=generator)

    def norms(*shape: int, value: float = 1.0) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def layer(index: int) -> LayerWeights:
        gain = _BRANCH_GAIN * ((2 * config.num_layers) ** -0.5 if index else 1.0)
        drawn_layer = LayerWeights(
            input_norm=norms(hidden),
            qkv=drawn(query + 2 * key, hidden),
            qkv_bias=drawn(query + 2 * key) if config.attention_bias else None,
            qk_norm=norms(config.num_heads + config.num_kv_heads, head_dim, value=_KEY_NORM),
            out=drawn(hidden, query, gain=gain),
            out_bias=drawn(hidden) if config.attention_bias else None,
            post_norm=norms(hidden),
            gate_up=drawn(2 * inner, hidden),
            down=drawn(hidden, inner, gain=gain),
        )
        return quantised(drawn_layer) if fp8 else drawn_layer

    layers = tuple(layer(index) for index in range(config.num_layers))
    embedding = drawn(config.vocab_size, hidden)
    head = embedding if config.tied else drawn(config.vocab_size, hidden)
    return Qwen3Weights(embedding, layers, norms(hidden), head)
