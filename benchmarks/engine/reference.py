"""The network in plain torch over whole sequences, without our kernels.

Owns the forward pass that answers are checked against. Shares the weights with the engine, each
converted when it is used, and the kernels' word on which rows a product rounds. Large intermediates
are computed in parts, so that an 8B model and 32k tokens take about 3 GB in float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.delta_rule import reference as delta_rule
from kernels.experts import Routed, takes_shared
from kernels.experts import reference as mixtures
from kernels.experts import rounds_rows as rounds_experts
from kernels.experts.stack import Stack, expert_of
from kernels.fp8 import BLOCK, DualWeight, Fp8Weight
from kernels.int4 import Int4Weight, in_order
from kernels.latent import LATENT_EPS
from kernels.latent.reference import plain_form
from kernels.linear import Op, Weight, rounds_rows
from kernels.mxfp4 import Mxfp4Weight, dequantise
from workers.engine.models.angles import cos_sin
from workers.engine.models.description import (
    Attention,
    DeltaRule,
    Experts,
    Gate,
    Latent,
    ModelDescription,
)
from workers.engine.models.weights import LayerWeights, ModelWeights

_HEAD_ROWS = 16_384
"""Rows of the head converted at a time: all of them in float32 would take 2.5 GB on 8B."""

_MLP_ROWS = 4_096
"""Rows that go through an MLP at a time: 16k of them would take 5 GB in float32 on 8B."""

_MAX_SCORES = 1 << 27
"""Scores of attention at a time, half a GB in float32."""

_FP8_MAX = 448.0


class ReferencePart(NamedTuple):
    """`num_rows` consecutive rows of a sequence that were computed in steps of `step_rows` rows,
    those of other sequences and of padding included. `draws`: the rows for which such a step
    samples tokens; its last layer computes only those rows.
    """

    num_rows: int
    step_rows: int
    draws: int


class Rows(NamedTuple):
    """The rows of a sequence by the products that computed them: pairs of a number of consecutive
    rows and the number of rows in their product. Empty: nothing is rounded, and of a weight in both
    forms the dense one is used.
    """

    spans: tuple[tuple[int, int], ...]
    invariant: bool

    def between(self, start: int, end: int) -> "Rows":
        """The rows from `start` to `end`."""
        found, at = [], 0
        for num, size in self.spans:
            inside = min(end, at + num) - max(start, at)
            if inside > 0:
                found.append((inside, size))
            at += num
        return self._replace(spans=tuple(found))

    def at(self, places: Sequence[int]) -> "Rows":
        """The rows at `places`, in that order."""
        sizes = [size for num, size in self.spans for _ in range(num)]
        return self._replace(spans=tuple((1, sizes[place]) for place in places if sizes))

    def rounded(self, rounds: Callable[[int], bool]) -> Tensor | None:
        """Which rows are rounded, where `rounds` says it for the number of rows of a step; None if
        no row is.
        """
        flags = [flag for num, size in self.spans for flag in [rounds(size)] * num]
        return torch.tensor(flags) if any(flags) else None

    def product(
        self,
        op: Op,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        is_gelu: bool = False,
        whole: Weight | None = None,
        is_other: Callable[[int], bool] = lambda _: False,
    ) -> Tensor:
        """`x W^T + bias` as the kernels' entry `op` rounds it. `weight` may be rows of `whole`. If
        it `is_other` for that number of rows, another kernel computes it, which does not round.
        """
        if isinstance(weight, Tensor | Int4Weight) or not self.spans:
            return _linear(x, weight.dense if isinstance(weight, DualWeight) else weight, bias)
        asked = partial(rounds_rows, op, weight=whole or weight, like=x, bias=bias)
        spans = [
            (
                num,
                size,
                not is_other(size) and asked(size, is_gelu=is_gelu, invariant=self.invariant),
            )
            for num, size in self.spans
        ]
        parts = x.split([num for num, _, _ in spans])
        found = [
            _rounded_rows(part) if rounds else part
            for part, (_, _, rounds) in zip(parts, spans, strict=True)
        ]
        if isinstance(weight, Fp8Weight):
            return _linear(torch.cat(found), weight, bias)
        forms = [
            weight.of_rows(size) if isinstance(weight, DualWeight) else weight
            for _, size, _ in spans
        ]
        return torch.cat(
            [_linear(part, form, bias) for part, form in zip(found, forms, strict=True)]
        )


@torch.inference_mode()
def reference_logits(
    config: ModelDescription,
    weights: ModelWeights,
    ids: Tensor,
    rows: Tensor,
    dtype: torch.dtype,
    parts: Sequence[ReferencePart] = (),
    *,
    invariant: bool = False,
) -> Tensor:
    """Logits [rows, vocab] float32 of `rows` of the sequence `ids` [T], computed in `dtype`.

    Weights in 8 bits are widened. Where the kernels round the rows of a step to 8 bits too, so do
    the rows of its `parts`; a weight that exists in both forms is used in the step's.
    """
    scale = torch.tensor(config.embedding_scale).to(weights.embedding.dtype).to(dtype)
    hidden = F.embedding(ids, weights.embedding).to(dtype) * scale
    eps = config.rms_norm_eps
    if config.side_width:
        raise ValueError(f"{config.family} with side inputs has no reference to check answers")
    turned = {(each.rope, _turned_dim(each)) for each in config.attentions}
    angles = {each: cos_sin(*each, len(ids)).to(ids.device) for each in turned}
    last = weights.layers[-1]
    all_rows = Rows(tuple((part.num_rows, part.step_rows) for part in parts), invariant)
    drawn_rows = Rows(tuple((part.num_rows, part.draws) for part in parts), invariant)
    for described, layer in zip(config.layers, weights.layers, strict=True):
        mixer = described.mixer
        behind = drawn_rows if layer is last else all_rows
        if isinstance(mixer, DeltaRule):
            mixed = _recurrent(mixer, eps, layer, hidden, all_rows)
        else:
            turns = angles[mixer.rope, _turned_dim(mixer)].unsqueeze(1).chunk(2, dim=-1)
            of_kind = _latent if isinstance(mixer, Latent) else _attention
            mixed = of_kind(mixer, eps, layer, hidden, turns, all_rows)
        out = behind.product(_adds(layer.mixer_out_norm), mixed, layer.out, layer.out_bias)
        hidden = hidden + _branch(out, layer.mixer_out_norm, eps)
        if isinstance(described.mlp, Experts):
            hidden = hidden + _mixture(described.mlp, eps, layer, hidden, behind)
        else:
            hidden = hidden + _mlp(described.mlp.gate, eps, layer, hidden, behind)
        if layer.scale is not None:
            hidden = hidden * layer.scale.to(dtype)
    hidden = _norm(hidden[rows], weights.norm, eps)
    starts = range(0, config.vocab_size, _HEAD_ROWS)
    head = weights.head
    assert not isinstance(head, DualWeight)
    slices = (slice(start, start + _HEAD_ROWS) for start in starts)
    heads = (head[part] if isinstance(head, Tensor) else head.rows(part) for part in slices)
    draws = drawn_rows.at(rows.tolist())
    product = partial(draws.product, Op.NORM_LINEAR, hidden, whole=head)
    logits = torch.cat([product(weight=part) for part in heads], dim=-1)
    cap = config.logit_cap
    return (logits.div(cap).tanh().mul(cap) if cap else logits).float()


def _adds(norm: Tensor | None) -> Op:
    """The entry of a product that ends a branch: with a norm of its own it is added later."""
    return Op.LINEAR_ADD if norm is None else Op.LINEAR


def _branch(added: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    return added if norm is None else _norm(added, norm, eps)


def _turned_dim(mixer: Attention) -> int:
    """Dimensions of a key that turn, and those that `cos_sin` leaves as they are."""
    return mixer.rope.dim if isinstance(mixer, Latent) else mixer.head_dim


def _attention(
    mixer: Attention,
    eps: float,
    layer: LayerWeights,
    hidden: Tensor,
    turns: Sequence[Tensor],
    rows: Rows,
) -> Tensor:
    """`layer.out` is not applied."""
    heads, keys = mixer.num_heads, mixer.num_kv_heads
    normed = _norm(hidden, layer.input_norm, eps)
    qkv = rows.product(Op.NORM_LINEAR, normed, layer.qkv, layer.qkv_bias)
    qkv = qkv.view(len(hidden), heads + 2 * keys, mixer.head_dim)
    query_key, values = qkv[:, : heads + keys], qkv[:, heads + keys :]
    if layer.qk_norm is not None:
        query_key = _norm(query_key, layer.qk_norm[: heads + keys], eps)
        if mixer.value_norms:
            values = _norm(values, layer.qk_norm[heads + keys :], eps)
    query_key = _turn(query_key, *turns)
    query, key, value = (
        part.transpose(0, 1) for part in (query_key[:, :heads], query_key[:, heads:], values)
    )
    key, value = (part.repeat_interleave(heads // keys, dim=0) for part in (key, value))
    if hidden.dtype == torch.float32 or mixer.window or layer.sinks is not None:
        mixed = _attend(mixer, query, key, value, layer.sinks)
    else:
        query, key, value = (part.unsqueeze(0) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=mixer.scale
        ).squeeze(0)
    mixed = mixed.transpose(0, 1).reshape(len(hidden), heads * mixer.head_dim)
    if layer.gate is not None:
        mixed = mixed * rows.product(Op.NORM_LINEAR, normed, layer.gate).sigmoid()
    return mixed


def _latent(
    mixer: Attention,
    eps: float,
    layer: LayerWeights,
    hidden: Tensor,
    turns: Sequence[Tensor],
    rows: Rows,
) -> Tensor:
    """Latent attention by its plain form; `layer.out` is not applied."""
    latent = layer.latent
    assert latent is not None
    normed = _norm(hidden, layer.input_norm, eps)
    made = rows.product(Op.NORM_LINEAR, normed, layer.qkv, layer.qkv_bias)
    num_heads, plain, rank = latent.key_up.shape
    queries, cached = made.split([made.shape[1] - rank - mixer.rope.dim, rank + mixer.rope.dim], 1)
    if latent.query_up is not None and latent.query_norm is not None:
        queries = _norm(queries, latent.query_norm, LATENT_EPS)
        queries = rows.product(Op.NORM_LINEAR, queries, latent.query_up)
    queries = queries.unflatten(1, (num_heads, plain + mixer.rope.dim))
    queries = torch.cat((queries[..., :plain], _turn(queries[..., plain:], *turns)), dim=2)
    keys = _turn(cached[:, rank:].unsqueeze(1), *turns).squeeze(1)
    cached = torch.cat((_norm(cached[:, :rank], latent.norm, LATENT_EPS), keys), dim=1)
    wide = latent._replace(
        key_up=latent.key_up.to(hidden.dtype), value_up=latent.value_up.to(hidden.dtype)
    )
    return plain_form(queries, cached, wide, 0, mixer.scale).flatten(1)


def _recurrent(
    mixer: DeltaRule, eps: float, layer: LayerWeights, hidden: Tensor, steps: Rows
) -> Tensor:
    """The gated delta rule over a whole sequence, in chunks; `layer.out` is not applied."""
    assert layer.delta is not None
    assert isinstance(layer.gate, Tensor)
    sizes, delta = mixer.sizes, layer.delta
    keys, heads = sizes.key_columns, (mixer.num_value_heads, mixer.value_dim)
    normed = _norm(hidden, layer.input_norm, eps)
    qkvz = steps.product(Op.NORM_LINEAR, normed, layer.qkv)
    rows, z = qkvz.split([sizes.columns, sizes.value_columns], dim=1)
    b, a = F.linear(normed, layer.gate.to(hidden.dtype)).float().chunk(2, dim=1)
    nothing = rows.new_zeros(mixer.conv_width - 1, sizes.columns)
    rows, _ = delta_rule.short_conv(rows, delta.conv.to(rows.dtype), nothing)
    query, key, value = rows.split([keys, keys, sizes.value_columns], dim=1)
    by_key = mixer.num_key_heads, mixer.key_dim
    out, _ = delta_rule.chunked(
        query.unflatten(1, by_key),
        key.unflatten(1, by_key),
        value.unflatten(1, heads),
        -delta.decay.exp() * F.softplus(a + delta.dt_bias),
        b.sigmoid(),
        torch.zeros(mixer.num_value_heads, mixer.key_dim, mixer.value_dim, device=rows.device),
    )
    gated = _norm(out, delta.norm, eps) * F.silu(z.unflatten(1, heads).float()).to(out.dtype)
    return gated.flatten(1)


def _attend(
    mixer: Attention, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> Tensor:
    """Causal attention [heads, T, D] by its definition. torch's own allocates heads x T x T float32
    numbers on some devices. `sinks` [heads] are scores that no value answers.
    """
    heads, length, _ = query.shape
    step = max(1, _MAX_SCORES // (heads * length))
    ranks = torch.arange(length, device=query.device)
    parts = []
    for start in range(0, length, step):
        end = min(start + step, length)
        scores = query[:, start:end] @ key[:, :end].transpose(1, 2) * mixer.scale
        before = ranks[start:end, None] - ranks[:end]
        hidden = (before < 0) | (before >= (mixer.window or length))
        scores.masked_fill_(hidden, float("-inf"))
        if sinks is not None:
            beside = sinks.to(scores.dtype).view(-1, 1, 1).expand(heads, end - start, 1)
            scores = torch.cat((scores, beside), dim=-1)
        parts.append(torch.softmax(scores, dim=-1)[..., :end] @ value[:, :end])
    return torch.cat(parts, dim=1)


def _mlp(gate_kind: Gate, eps: float, layer: LayerWeights, hidden: Tensor, steps: Rows) -> Tensor:
    is_gelu = gate_kind is not Gate.SILU
    found = []
    for start in range(0, len(hidden), _MLP_ROWS):
        rows, own = hidden[start : start + _MLP_ROWS], steps.between(start, start + _MLP_ROWS)
        normed = _norm(rows, layer.mlp_norm, eps)
        gate_up = own.product(Op.NORM_SWIGLU, normed, layer.gate_up, is_gelu=is_gelu)
        gate, up = gate_up.chunk(2, dim=-1)
        gate = F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)
        found.append(own.product(_adds(layer.mlp_out_norm), gate * up, layer.down))
    return _branch(torch.cat(found), layer.mlp_out_norm, eps)


def _mixture(mlp: Experts, eps: float, layer: LayerWeights, hidden: Tensor, steps: Rows) -> Tensor:
    """What the experts of each row make of it, and the shared one."""
    found = []
    for start in range(0, len(hidden), _MLP_ROWS):
        rows, own = hidden[start : start + _MLP_ROWS], steps.between(start, start + _MLP_ROWS)
        normed = _norm(rows, layer.mlp_norm, eps)
        if layer.apart is None:
            found.append(_mixed(mlp, layer, normed, own))
            continue
        norms = layer.apart
        routed = _routed(mlp, layer, _norm(rows, norms.router, eps))
        made = _summed(mlp, layer, _norm(rows, norms.before, eps), routed, own)
        beside = _norm(_shared(mlp, layer, normed, own, Op.LINEAR), norms.behind_shared, eps)
        found.append(beside + _norm(made, norms.behind, eps))
    return _branch(torch.cat(found), layer.mlp_out_norm, eps)


def _routed(mlp: Experts, layer: LayerWeights, normed: Tensor) -> Routed:
    experts, dtype = layer.experts, normed.dtype
    assert experts is not None
    bias = experts.router_bias
    chosen_by = experts._replace(
        router=experts.router.to(dtype),
        router_bias=None if bias is None else bias.to(dtype),
        drawn=None,
    )
    return mixtures.route(normed, chosen_by, mlp.routing)


def _summed(
    mlp: Experts, layer: LayerWeights, normed: Tensor, routed: Routed, steps: Rows
) -> Tensor:
    """The weighed sum of what each row's experts make of it."""

    def rounds(num_rows: int) -> bool:
        given = normed[:1].expand(num_rows, -1), layer.gate_up, layer.down, mlp.routing
        return rounds_experts(*given, invariant=steps.invariant)

    rounded = steps.rounded(rounds)
    summed = torch.zeros(normed.shape, dtype=torch.float32, device=normed.device)
    count = mlp.num_experts
    for index in routed.experts.unique().tolist():
        rows, places = (routed.experts == index).nonzero(as_tuple=True)
        own = None if rounded is None else rounded.to(rows.device)[rows].unsqueeze(1)
        out = _expert(mlp, layer, normed[rows], index, count, own)
        summed.index_add_(0, rows, out.float() * routed.weights[rows, places].unsqueeze(1))
    return summed.to(normed.dtype)


def _shared(
    mlp: Experts,
    layer: LayerWeights,
    normed: Tensor,
    steps: Rows,
    last: Op,
    share: Tensor | None = None,
    is_other: Callable[[int], bool] = lambda _: False,
) -> Tensor:
    """What the shared expert makes of each row, times its `share`; see `Rows.product`."""
    experts, is_gelu = layer.experts, mlp.gate is not Gate.SILU
    assert experts is not None
    assert experts.shared_gate_up is not None
    assert experts.shared_down is not None
    gate_up = steps.product(
        Op.NORM_SWIGLU, normed, experts.shared_gate_up, is_gelu=is_gelu, is_other=is_other
    )
    gate, up = gate_up.chunk(2, dim=-1)
    gated = (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * up
    if share is not None:
        gated = gated * share.unsqueeze(1).to(normed.dtype)
    return steps.product(last, gated, experts.shared_down, is_other=is_other)


def _mixed(mlp: Experts, layer: LayerWeights, normed: Tensor, steps: Rows) -> Tensor:
    """The experts of each row, and the shared one."""
    routed = _routed(mlp, layer, normed)
    summed = _summed(mlp, layer, normed, routed, steps)
    if not mlp.shared_width:
        return summed
    assert layer.experts is not None
    experts = layer.experts

    def is_merged(num_rows: int) -> bool:
        rows = normed[:1].expand(num_rows, -1)
        given = rows, layer.gate_up, layer.down, experts, mlp.routing
        return takes_shared(*given, invariant=steps.invariant)

    return summed + _shared(mlp, layer, normed, steps, Op.LINEAR_ADD, routed.shared, is_merged)


def _expert(
    mlp: Experts,
    layer: LayerWeights,
    x: Tensor,
    index: int,
    count: int,
    rounded: Tensor | None,
) -> Tensor:
    """One expert's output; both products take rounded rows where `rounded` bool [T, 1] says so."""
    experts = layer.experts
    assert experts is not None
    assert not isinstance(layer.gate_up, DualWeight)
    assert not isinstance(layer.down, DualWeight)
    biases = [
        None if bias is None else bias[index] for bias in (experts.gate_up_bias, experts.down_bias)
    ]
    if rounded is not None:
        x = torch.where(rounded, _rounded_rows(x), x)
    gate_up = _linear(x, expert_of(layer.gate_up, index, count), biases[0])
    gated = mixtures.activate(gate_up, mlp.activation)
    if rounded is not None:
        gated = torch.where(rounded, _rounded_rows(gated), gated)
    return _linear(gated, expert_of(layer.down, index, count), biases[1])


def _linear(x: Tensor, weight: Stack, bias: Tensor | None = None) -> Tensor:
    wide_bias = None if bias is None else bias.to(x.dtype)
    if isinstance(weight, Int4Weight):
        return F.linear(x, in_order(weight, x.dtype), wide_bias)
    if isinstance(weight, Mxfp4Weight):
        return F.linear(x, dequantise(weight, x.dtype), wide_bias)
    wide = weight if isinstance(weight, Tensor) else _widened(weight)
    return F.linear(x, wide.to(x.dtype), wide_bias)


def _widened(weight: Fp8Weight) -> Tensor:
    """The weight in float32: values times scales."""
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


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
