"""The network again, in plain torch over whole sequences, without our kernels.

Owns the forward pass that answers are checked against. Shares only the weights with the engine,
each converted when it is used. What grows with the sequence is computed in parts, so that an 8B
model and 32k tokens take about 3 GB in float32.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.fp8 import BLOCK, Fp8Weight
from kernels.linear import Weight
from workers.engine.models.model_config import Qwen3Config
from workers.engine.models.weights import LayerWeights, Qwen3Weights

_HEAD_ROWS = 16_384
"""Rows of the head converted at a time: all of them in float32 would take 2.5 GB on 8B."""

_MLP_ROWS = 4_096
"""Rows that go through an MLP at a time: 16k of them would take 5 GB in float32 on 8B."""

_MAX_SCORES = 1 << 27
"""Scores of attention at a time, half a GB in float32."""

_FP8_MAX = 448.0


@torch.inference_mode()
def reference_logits(
    config: Qwen3Config,
    weights: Qwen3Weights,
    ids: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
    num_rounded: int = 0,
) -> Tensor:
    """Logits [rows, vocab] float32 of `rows` of the sequence `ids` [T], computed in `dtype`.

    Weights in 8 bits are widened; the first `num_rounded` rows are rounded to 8 bits too where such
    weights multiply them, as products of many rows do.
    """
    hidden = F.embedding(ids, weights.embedding).to(dtype)
    cos_sin = _angles(config, len(ids), ids.device)
    for layer in weights.layers:
        hidden = hidden + _attention(config, layer, hidden, cos_sin, num_rounded)
        hidden = hidden + _mlp(config, layer, hidden, num_rounded)
    hidden = _norm(hidden[rows], weights.norm, config.rms_norm_eps)
    starts = range(0, config.vocab_size, _HEAD_ROWS)
    heads = (weights.head[start : start + _HEAD_ROWS] for start in starts)
    parts = [F.linear(hidden, head.to(dtype)) for head in heads]
    return torch.cat(parts, dim=-1).float()


def _attention(
    config: Qwen3Config,
    layer: LayerWeights,
    hidden: Tensor,
    cos_sin: tuple[Tensor, Tensor],
    num_rounded: int,
) -> Tensor:
    dtype, eps = hidden.dtype, config.rms_norm_eps
    heads, keys = config.num_heads, config.num_kv_heads
    normed = _norm(hidden, layer.input_norm, eps)
    qkv = _linear(normed, layer.qkv, num_rounded, layer.qkv_bias)
    qkv = qkv.view(len(hidden), heads + 2 * keys, config.head_dim)
    query_key = _turn(_norm(qkv[:, : heads + keys], layer.qk_norm, eps), *cos_sin)
    query, key, value = (
        part.transpose(0, 1)
        for part in (query_key[:, :heads], query_key[:, heads:], qkv[:, heads + keys :])
    )
    key, value = (part.repeat_interleave(heads // keys, dim=0) for part in (key, value))
    if dtype == torch.float32:
        mixed = _attend(query, key, value)
    else:
        query, key, value = (part.unsqueeze(0) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(0)
    mixed = mixed.transpose(0, 1).reshape(len(hidden), heads * config.head_dim)
    return _linear(mixed, layer.out, num_rounded, layer.out_bias)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention [heads, T, D] by its definition. torch's own allocates heads x T x T float32
    numbers on some devices.
    """
    heads, length, width = query.shape
    step = max(1, _MAX_SCORES // (heads * length))
    ranks = torch.arange(length, device=query.device)
    parts = []
    for start in range(0, length, step):
        end = min(start + step, length)
        scores = query[:, start:end] @ key[:, :end].transpose(1, 2) * width**-0.5
        scores.masked_fill_(ranks[:end] > ranks[start:end, None], float("-inf"))
        parts.append(torch.softmax(scores, dim=-1) @ value[:, :end])
    return torch.cat(parts, dim=1)


def _mlp(config: Qwen3Config, layer: LayerWeights, hidden: Tensor, num_rounded: int) -> Tensor:
    parts = []
    for start in range(0, len(hidden), _MLP_ROWS):
        rows, num = hidden[start : start + _MLP_ROWS], max(0, num_rounded - start)
        normed = _norm(rows, layer.post_norm, config.rms_norm_eps)
        gate, up = _linear(normed, layer.gate_up, num).chunk(2, dim=-1)
        parts.append(_linear(F.silu(gate) * up, layer.down, num))
    return torch.cat(parts)


def _linear(x: Tensor, weight: Weight, num_rounded: int, bias: Tensor | None = None) -> Tensor:
    wide_bias = None if bias is None else bias.to(x.dtype)
    if isinstance(weight, Tensor):
        return F.linear(x, weight.to(x.dtype), wide_bias)
    if num_rounded:
        x = torch.cat((_rounded_rows(x[:num_rounded]), x[num_rounded:]))
    return F.linear(x, _widened(weight).to(x.dtype), wide_bias)


def _widened(weight: Fp8Weight) -> Tensor:
    """Values times scales, in float32."""
    scales = weight.scales
    if weight.is_blocked:
        rows, columns = weight.shape
        scales = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    else:
        scales = scales.unsqueeze(1)
    return weight.values.float() * scales


def _rounded_rows(x: Tensor) -> Tensor:
    """Round to 8-bit floats and back, one scale per row."""
    scales = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / _FP8_MAX
    return ((x.float() / scales).to(torch.float8_e4m3fn).float() * scales).to(x.dtype)


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
