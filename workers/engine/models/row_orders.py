"""In which order a checkpoint holds rows, and in which the network reads them.

Owns the orders. Must not know names of tensors, nor files.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.delta_rule import DeltaSizes
from kernels.fp8 import BLOCK, DualWeight, Fp8Weight, dequantise
from kernels.int4 import Int4Weight, in_order
from kernels.linear import Weight
from kernels.mxfp4 import Mxfp4Weight
from workers.engine.load.quantize import StoredFormat
from workers.engine.models.angles import turned_order
from workers.engine.models.description import Attention, Latent
from workers.engine.models.weights import LayerWeights


def in_turned_order(layer: LayerWeights, mixer: Attention, dtype: torch.dtype) -> LayerWeights:
    """The layer with the rows of queries and keys as rotations of a part of a head want them, and
    output gates, which lie behind the queries of their head, by themselves.
    """
    order = turned_order(mixer.rope, mixer.head_dim)
    if order is None and not mixer.out_gate:
        return layer
    inside = torch.arange(mixer.head_dim)
    turned = inside if order is None else order
    query_step = mixer.head_dim * (1 + mixer.out_gate)
    queries = torch.arange(mixer.num_heads).unsqueeze(1) * query_step
    keys = torch.arange(2 * mixer.num_kv_heads).unsqueeze(1) * mixer.head_dim
    keys += mixer.num_heads * query_step
    first, last = keys.chunk(2)
    device = layer.input_norm.device
    parts = queries + turned, first + turned, last + inside
    rows = torch.cat([part.flatten() for part in parts]).to(device)
    gates = (queries + mixer.head_dim + inside).flatten().to(device)
    return replace(
        layer,
        qkv=rows_of(layer.qkv, rows, dtype),
        gate=rows_of(layer.qkv, gates, dtype) if mixer.out_gate else None,
        qkv_bias=None if layer.qkv_bias is None else layer.qkv_bias[rows],
        qk_norm=None if layer.qk_norm is None else layer.qk_norm[:, turned.to(device)],
    )


def interleaved_rows(mixer: Latent) -> tuple[Tensor, Tensor]:
    """Where the rows of a latent attention's queries and of its cached rows are, whose turned
    dimensions are paired by neighbours, in the order that pairs halves.
    """
    pairs = gates_first(mixer.rope.dim)
    plain = mixer.plain_dim
    inside = torch.cat((torch.arange(plain), plain + pairs))
    heads = torch.arange(mixer.num_heads).unsqueeze(1) * len(inside)
    return (heads + inside).flatten(), torch.cat((torch.arange(mixer.rank), mixer.rank + pairs))


def rows_of(weight: Weight, rows: Tensor, dtype: torch.dtype) -> Weight:
    """These rows; in `dtype` where scales by block would have to move with them."""
    if isinstance(weight, Tensor):
        return weight[rows]
    if isinstance(weight, Int4Weight):
        return weight.rows(rows)
    if isinstance(weight, DualWeight):
        raise TypeError("rows are ordered before they are quantised")
    if isinstance(weight, Fp8Weight) and weight.is_blocked:
        return dequantise(weight, dtype)[rows]
    return weight.rows(rows)


def wide_form(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The matrix in `dtype`, its columns in the checkpoint's order."""
    if isinstance(weight, Int4Weight):
        return in_order(weight, dtype)
    if isinstance(weight, DualWeight | Mxfp4Weight):
        raise TypeError("weights are widened before they are doubled, and experts are not")
    return dequantise(weight, dtype) if isinstance(weight, Fp8Weight) else weight


def by_kind(sizes: DeltaSizes) -> tuple[Tensor, Tensor]:
    """Where the rows of queries, keys, values and z are, and those of b and a, where both lie by
    key head.
    """
    group = sizes.num_value_heads // sizes.num_key_heads
    values = group * sizes.value_dim
    orders = []
    for parts in ([sizes.key_dim, sizes.key_dim, values, values], [group, group]):
        rows = torch.arange(sizes.num_key_heads * sum(parts)).view(sizes.num_key_heads, -1)
        orders.append(torch.cat([part.flatten() for part in torch.split(rows, parts, dim=1)]))
    return orders[0], orders[1]


def gates_first(num_rows: int) -> Tensor:
    """The order of rows that alternate, gates and ups, with the gates first."""
    return torch.arange(num_rows).view(-1, 2).t().flatten()


def scales_shape(stored: StoredFormat, num_rows: int, depth: int) -> tuple[int, int]:
    """The shape of one module's scales in the checkpoint."""
    if stored is StoredFormat.FP8_ROWS:
        return num_rows, 1
    return -(-num_rows // BLOCK), -(-depth // BLOCK)
