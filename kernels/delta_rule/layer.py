"""A layer of the gated delta rule in plain torch: the CPU's path, and what kernels must agree with.

Owns the order of its operations over the spans of a step. Must not know how a chunk is computed.

All single rows are computed by `_step`: decodes, rows that are verified, and rows of a ring that
are folded. So no bit of a state depends on how many drafts were verified on the way.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.delta_rule import reference
from kernels.delta_rule.plan import NO_SPAN, DeltaPlan, VerifyPlan
from kernels.delta_rule.shapes import DeltaRing, DeltaSizes, DeltaState, DeltaWeights


def mix(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    plan: DeltaPlan,
    sizes: DeltaSizes,
) -> Tensor:
    """See `kernels.delta_rule.mix`."""
    columns, num_decodes = sizes.columns, plan.num_decodes
    out = rows.new_zeros((len(rows), sizes.num_value_heads, sizes.value_dim))
    if num_decodes:
        slots = plan.slots[:num_decodes].long()
        begun = plan.starts[:num_decodes] > 0
        held, tails = _held(state, slots, begun)
        first = slice(0, num_decodes)
        out[first], held, tails = _step(
            rows[first, :columns], gates[first], weights, held, tails, sizes
        )
        state.matrices[slots], state.tails[slots] = held, tails
    offsets, starts, slots_of = plan.offsets.tolist(), plan.starts.tolist(), plan.slots.tolist()
    for span in range(num_decodes, len(starts)):
        part, slot = slice(offsets[span], offsets[span + 1]), slots_of[span]
        if part.start == part.stop or starts[span] < 0:
            continue
        begun = torch.tensor([starts[span] > 0], device=rows.device)
        held, tails = _held(state, torch.tensor([slot], device=rows.device), begun)
        mixed, tail = reference.short_conv(rows[part, :columns], weights.conv, tails[0])
        out[part], matrix = reference.chunked(
            *_heads(mixed, sizes), *_gates(gates[part], weights), held[0]
        )
        state.matrices[slot], state.tails[slot] = matrix, tail
    return gated_norm(out, rows[:, columns:], weights.norm, eps)


def verify(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    eps: float,
    state: DeltaState,
    ring: DeltaRing,
    taken: VerifyPlan,
    plan: DeltaPlan,
    sizes: DeltaSizes,
) -> Tensor:
    """See `kernels.delta_rule.verify`."""
    columns, offsets, slots = sizes.columns, plan.offsets.tolist(), plan.slots.long()
    others = torch.where(taken.starts < 0, plan.starts, NO_SPAN)
    rest = plan._replace(num_decodes=0, starts=others)
    out = mix(rows, gates, weights, eps, state, rest, sizes)
    own = torch.nonzero(taken.starts >= 0).flatten()
    if not len(own):
        return out
    begun, places = taken.starts[own] > 0, slots[own]
    for span, slot, has_begun in zip(own.tolist(), places.split(1), begun.split(1), strict=True):
        for row in range(int(taken.folds[span])):
            _, state.matrices[slot], state.tails[slot] = _step(
                ring.rows[slot, row],
                ring.gates[slot, row],
                weights,
                *_held(state, slot, has_begun),
                sizes,
            )
    given = [offsets[span] for span in own.tolist()]
    held, tails = _held(state, places, begun)
    first, held, tails = _step(rows[given, :columns], gates[given], weights, held, tails, sizes)
    state.matrices[places], state.tails[places] = held, tails
    read = [first]
    for at, span in enumerate(own.tolist()):
        begin, end, slot = offsets[span] + 1, offsets[span + 1], slots[span]
        own_held, own_tails = held[at : at + 1], tails[at : at + 1]
        for row in range(begin, end):
            part = slice(row, row + 1)
            each, own_held, own_tails = _step(
                rows[part, :columns], gates[part], weights, own_held, own_tails, sizes
            )
            read.append(each)
            given.append(row)
        ring.rows[slot, : end - begin] = rows[begin:end, :columns]
        ring.gates[slot, : end - begin] = gates[begin:end]
    whole = rows.new_zeros((len(rows), sizes.num_value_heads, sizes.value_dim))
    whole[given] = torch.cat(read)
    # torch rounds each row by itself if rows are slices of longer rows.
    out[given] = gated_norm(whole, rows[:, columns:], weights.norm, eps)[given]
    return out


def gated_norm(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[T, HV V]: out [T, HV, V] normed by head, weighed, then times `silu` of z [T, HV V]."""
    wide = out.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    weighed = (weight * normed.to(out.dtype)).flatten(1)
    return (weighed * F.silu(z.float())).to(out.dtype)


def _held(state: DeltaState, slots: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
    """What the slots [n] hold: matrices [n, HV, K, V] and tails; nothing unless `begun` [n], also
    where a slot holds what is no number.
    """
    matrices = torch.where(begun[:, None, None, None], state.matrices[slots], 0.0)
    return matrices, torch.where(begun[:, None, None], state.tails[slots], 0.0)


def _step(
    rows: Tensor,
    gates: Tensor,
    weights: DeltaWeights,
    held: Tensor,
    tails: Tensor,
    sizes: DeltaSizes,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row [n, C] each of n sequences: out [n, HV, V], and the new states and tails."""
    window = torch.cat((tails, rows.unsqueeze(1).to(tails.dtype)), dim=1)
    mixed = F.silu((window * weights.conv.T).sum(1)).to(rows.dtype)
    queries, keys, values = _heads(mixed, sizes)
    out, held = reference.step(queries, keys, values, *_gates(gates, weights), held)
    return out, held, window[:, 1:]


def _heads(mixed: Tensor, sizes: DeltaSizes) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys [T, HK, K], values [T, HV, V] of rows behind the convolution."""
    key = sizes.key_columns
    queries, keys, values = mixed.split([key, key, sizes.value_columns], dim=1)
    by_key = sizes.num_key_heads, sizes.key_dim
    by_value = sizes.num_value_heads, sizes.value_dim
    return queries.unflatten(1, by_key), keys.unflatten(1, by_key), values.unflatten(1, by_value)


def _gates(gates: Tensor, weights: DeltaWeights) -> tuple[Tensor, Tensor]:
    """Logarithms of what is kept, and betas, float32 [T, HV]. (softplus is linear past 20.)"""
    b, a = gates.float().chunk(2, dim=1)
    return -weights.decay.exp() * F.softplus(a + weights.dt_bias), torch.sigmoid(b)
