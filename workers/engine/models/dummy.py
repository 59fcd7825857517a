"""Models of a known shape whose weights are drawn, not read: only for measuring speed.

Owns the draw. A shape has no tokenizer, so the configuration of a served worker refuses it
(`config/checks.py`). Must not know the measurement.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from workers.engine.models.description import Layer, ModelConfig
from workers.engine.models.weights import LayerWeights, ModelWeights

_BRANCH_GAIN: Final = 2.0
"""Attention averages values and SwiGLU halves what goes through it."""

_KEY_NORM: Final = 2.0**0.5
"""Gain of queries and keys: scores spread by 2, so attention goes to few keys, not to all."""


def draw_weights(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    *,
    change: Callable[[LayerWeights], LayerWeights] | None = None,
) -> ModelWeights:
    """Seeded normal weights, made where they stay. Milliseconds on a card.

    They are drawn so that answers can be checked: the first layer makes a state, to which all
    others together add as much again, each 1 / sqrt(2 layers). With equal layers every one would
    turn the sum of those before it around, and 36 of them make 5 % of the logits' spread out of the
    rounding of bfloat16; these make 2.5 %, and one layer without its MLP a tenth.

    `change` is applied to each layer: `weights.quantised` has its products in 8 bits.
    """
    # On a pretended device (`kernels.recorder`) nothing is drawn.
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int, gain: float = 1.0) -> Tensor:
        empty = torch.empty(shape, dtype=dtype, device=device)
        if generator is None:
            return empty
        return empty.normal_(0.0, gain * shape[-1] ** -0.5, generator=generator)

    def norms(*shape: int, value: float = 1.0) -> Tensor:
        kept = torch.float32 if config.norm_offset else dtype
        return torch.full(shape, value, dtype=kept, device=device)

    hidden = config.hidden_size

    def layer(index: int, described: Layer) -> LayerWeights:
        gain = _BRANCH_GAIN * ((2 * config.num_layers) ** -0.5 if index else 1.0)
        mixer = described.mixer
        merged, out, gate_up, down = config.matrices(described)
        # A branch that is normed adds as much as its norm says.
        branch = norms(hidden, value=gain) if described.branch_norms else None
        num_normed = mixer.num_heads + mixer.num_kv_heads
        drawn_layer = LayerWeights(
            input_norm=norms(hidden),
            qkv=drawn(*merged),
            qkv_bias=drawn(merged[0]) if mixer.qkv_bias else None,
            qk_norm=norms(num_normed, mixer.head_dim, value=_KEY_NORM)
            if mixer.head_norms
            else None,
            out=drawn(*out, gain=gain),
            out_bias=drawn(hidden) if mixer.out_bias else None,
            mixer_out_norm=branch,
            mlp_norm=norms(hidden),
            gate_up=drawn(*gate_up),
            down=drawn(*down, gain=gain),
            mlp_out_norm=branch,
        )
        return drawn_layer if change is None else change(drawn_layer)

    layers = tuple(layer(index, described) for index, described in enumerate(config.layers))
    embedding = drawn(config.vocab_size, hidden)
    head = embedding if config.tied else drawn(config.vocab_size, hidden)
    return ModelWeights(embedding, layers, norms(hidden), head)
