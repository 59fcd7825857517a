"""The network once more, in plain torch over whole sequences, without any kernel of ours.

Owns the forward pass that answers are checked against. Must not share code with the engine: only
its weights, each converted when it is used.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from workers.engine.model_config import Qwen3Config
from workers.engine.weights import LayerWeights, Qwen3Weights

_HEAD_ROWS = 16_384
"""Rows of the head converted at a time: all of them in float32 would take 2.5 GB on 8B."""


@torch.inference_mode()
def reference_logits(
    config: Qwen3Config, weights: Qwen3Weights, ids: Tensor, rows: Tensor, dtype: torch.dtype
) -> Tensor:
    """Logits [rows, vocab] float32 of `rows` of the sequence `ids` [T], computed in `dtype`."""
    hidden = F.embedding(ids, weights.embedding).to(dtype)
    cos_sin = _angles(config, len(ids), ids.device)
    for layer in weights.layers:
        hidden = hidden + _attention(config, layer, hidden, cos_sin)
        normed = _norm(hidden, layer.post_norm, config.rms_norm_eps)
        gate, up = F.linear(normed, layer.gate_up.to(dtype)).chunk(2, dim=-1)
        hidden = hidden + F.linear(F.silu(gate) * up, layer.down.to(dtype))
    hidden = _norm(hidden[rows], weights.norm, config.rms_norm_eps)
    starts = range(0, config.vocab_size, _HEAD_ROWS)
    heads = (weights.head[start : start + _HEAD_ROWS] for start in starts)
    parts = [F.linear(hidden, head.to(dtype)) for head in heads]
    return torch.cat(parts, dim=-1).float()


def _attention(
    config: Qwen3Config, layer: LayerWeights, hidden: Tensor, cos_sin: tuple[Tensor, Tensor]
) -> Tensor:
    dtype, eps = hidden.dtype, config.rms_norm_eps
    heads, keys = config.num_heads, config.num_kv_heads
    normed = _norm(hidden, layer.input_norm, eps)
    qkv = F.linear(normed, layer.qkv.to(dtype), _as(layer.qkv_bias, dtype))
    qkv = qkv.view(len(hidden), heads + 2 * keys, config.head_dim)
    query_key = _turn(_norm(qkv[:, : heads + keys], layer.qk_norm, eps), *cos_sin)
    query, key, value = (
        part.transpose(0, 1).unsqueeze(0)
        for part in (query_key[:, :heads], query_key[:, heads:], qkv[:, heads + keys :])
    )
    groups = heads // keys
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    mixed = mixed.squeeze(0).transpose(0, 1).reshape(len(hidden), heads * config.head_dim)
    return F.linear(mixed, layer.out.to(dtype), _as(layer.out_bias, dtype))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return wide.to(x.dtype) * weight.to(x.dtype)


def _angles(config: Qwen3Config, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    halves = torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim
    positions = torch.arange(length, device=device).float()
    angles = torch.outer(positions, config.rope_theta**-halves).unsqueeze(1)
    return angles.cos(), angles.sin()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _as(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.to(dtype)
