"""The Triton router: scores of all experts, the choice of a few and their weights, in one launch.

Owns the kernel and its launches. Tiles of experts and parts of their columns are programs of their
own, because one program could not read a router fast enough: 0.5 MB for 128 experts of 2,048
columns. They leave products in scratch memory; the last program of a tile of rows to arrive adds
the parts up, always in the same order, and chooses.

Of a few rows it is also the launch of the norm ahead: every program takes the mean square of whole
rows, 4 KB each, those of the first experts write the normed ones, and the router's weights are read
while the kernel ahead ends.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.experts.shapes import DRAWN_TILES, ExpertWeights, Routed, Routing
from kernels.experts.tiles import dot_type
from kernels.launch import Launch, scratch

_ROWS: Final = 16
"""Rows of a tile, always as many: a row's products then have one order whatever stands beside it.
"""
_EXPERTS: Final = 16
_LONG_ROWS: Final = 512
_LONG_TILE: Final = 64
_LONG_SIZE: Final = 8192
"""For more rows, which need not be invariant, tiles have up to `_LONG_TILE` rows and experts, and
choose among `_LONG_SIZE` scores: tiles of 16 by 16 read half a gigabyte from the L2 cache for 8,192
rows of a 30B, 110 us on an H200."""
_COLUMNS: Final = 128
_PARTS: Final = 4
"""Parts of the columns: few enough that all loads of a program are on their way at once."""
_EXPERTS_OF_4_WARPS: Final = 128
_COUNTERS: Final = 2**16

NORMED_ROWS: Final = _ROWS
"""The most rows that are normed in the same launch: those of one tile."""
_SQUARES: Final = 512
_AHEAD: Final = 1024
"""Columns of a part, of 16 experts each, that a program's registers hold ahead of its wait."""
_RANKED_ROWS: Final = 4
_RANKED_EXPERTS: Final = 256
_LEAST_RANKED: Final = 128
"""Up to `_RANKED_ROWS` rows get their experts one row after the other, each expert by the number of
better ones: 16k comparisons of 128 experts at once. More rows take one expert of each after the
other, and eight of them take some 4 us (one H200: 6.5 us for the whole launch, and 4.1 for four of
32 experts). Fewer experts than threads are padded: Triton 3.7 would have every thread load all of
them."""


@triton.jit(do_not_specialize=["num_rows"])
def _route_kernel(
    x_ptr,  # [num_rows, HIDDEN], normed rows, or with NORM rows to be normed
    router_ptr,  # [E, HIDDEN], or [E + 1, HIDDEN] with SHARED
    bias_ptr,  # [E], added to products, read if BIAS
    choice_ptr,  # float32 [E], added to scores to choose, read if CHOICE
    products_ptr,  # float32 [PARTS, row tiles x ROWS, STRIDE], scratch
    arrived_ptr,  # int32 [row tiles], zeros, which are zeros again behind the launch
    experts_ptr,  # out: int32 [num_rows, ACTIVE]
    weights_ptr,  # out: float32 [num_rows, ACTIVE]
    shared_ptr,  # out: float32 [num_rows], written if SHARED
    state_ptr,  # int32 [1 + TILES], `Drawn.state`, read and counted up if DRAWN
    kept_ptr,  # out: int32 [KEPT, ACTIVE], written if DRAWN
    scales_ptr,  # float32 [E], by which weights are multiplied, read if SCALES
    norm_ptr,  # [HIDDEN], weights of the norm, read if NORM
    normed_ptr,  # out: [num_rows, HIDDEN], written if NORM
    num_rows,
    eps,  # epsilon of the norm
    E: tl.constexpr,  # experts
    ACTIVE: tl.constexpr,  # experts of a row
    HIDDEN: tl.constexpr,  # columns
    GROUPS: tl.constexpr,  # groups of experts
    ACTIVE_GROUPS: tl.constexpr,  # groups that compete
    SCALE: tl.constexpr,  # scale of the weights
    SIGMOID: tl.constexpr,  # scores are sigmoids, else the softmax
    RENORMALISES: tl.constexpr,  # weights add up to SCALE
    SHARED: tl.constexpr,  # whether the router has the row of the shared expert's gate
    BIAS: tl.constexpr,
    CHOICE: tl.constexpr,
    DRAWN: tl.constexpr,  # whether experts may be drawn
    TILES: tl.constexpr,  # counters of draws
    KEPT: tl.constexpr,  # rows whose experts are kept
    SCALES: tl.constexpr,
    ROWS: tl.constexpr,  # rows of a tile
    EXPERTS: tl.constexpr,  # experts of a tile
    COLUMNS: tl.constexpr,  # columns at a time
    PARTS: tl.constexpr,  # parts of the columns
    PART: tl.constexpr,  # columns of a part
    STRIDE: tl.constexpr,  # products of a row, a multiple of EXPERTS
    E_PAD: tl.constexpr,  # a power of two, at least E
    ACTIVE_PAD: tl.constexpr,  # a power of two, at least ACTIVE
    DOT: tl.constexpr,  # what products are taken in
    NORM: tl.constexpr,  # whether rows are normed first
    SQUARES: tl.constexpr,  # columns at a time whose squares are added up
    AHEAD: tl.constexpr,  # whether a program's part of the router is read ahead of the wait
    RANKED: tl.constexpr,  # whether rows choose one after the other
    RANKED_ROWS: tl.constexpr,  # the most rows that do
    PDL: tl.constexpr,
):
    """Program (tile of experts and part of the columns, tile of rows)."""
    tile, part = tl.program_id(1), tl.program_id(0) % PARTS
    own = tl.program_id(0) // PARTS * EXPERTS + tl.arange(0, EXPERTS)
    steps = tl.arange(0, COLUMNS)
    ahead = ()
    norms = ()
    if AHEAD:
        for start in tl.static_range(0, PART, COLUMNS):
            at = part * PART + start + steps
            ahead += (_router_tile(router_ptr, own, at, E + SHARED, HIDDEN),)  # type: ignore[assignment]
            norms += (tl.load(norm_ptr + at, at < HIDDEN, 0.0),)  # type: ignore[assignment]
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    rows = tile * ROWS + tl.arange(0, ROWS)
    if NORM:
        sums = _normed_sums(
            x_ptr, router_ptr, norm_ptr, normed_ptr, ahead, norms, rows, own, part, num_rows, eps,
            E + SHARED, HIDDEN, ROWS, EXPERTS, COLUMNS, PARTS, PART, DOT, SQUARES,
            RANKED_ROWS if RANKED else ROWS,
        )  # fmt: skip
    else:
        sums = tl.zeros([ROWS, EXPERTS], tl.float32)
        for start in range(0, PART, COLUMNS):
            at = part * PART + start + steps
            x = tl.load(
                x_ptr + rows.to(tl.int64)[:, None] * HIDDEN + at[None, :],
                (rows < num_rows)[:, None] & (at < HIDDEN)[None, :],
                0.0,
            ).to(DOT)
            router = _router_tile(router_ptr, own, at, E + SHARED, HIDDEN).to(DOT)
            sums = tl.dot(x, tl.trans(router), sums, input_precision="ieee")
    place = part * (tl.num_programs(1) * ROWS) + rows
    tl.store(products_ptr + place[:, None] * STRIDE + own[None, :], sums)
    tl.debug_barrier()  # every thread's products are stored before the count shows it
    arrived = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:
        tl.store(arrived_ptr + tile, 0)
        if RANKED:
            for row in range(num_rows):
                _choose(
                    bias_ptr, choice_ptr, products_ptr, experts_ptr, weights_ptr, shared_ptr,
                    state_ptr, kept_ptr, scales_ptr, row + tl.arange(0, 1), num_rows, E, ACTIVE,
                    GROUPS, ACTIVE_GROUPS, SCALE, SIGMOID, RENORMALISES, SHARED, BIAS, CHOICE,
                    DRAWN, TILES, KEPT, SCALES, 1, ROWS, PARTS, STRIDE, E_PAD, ACTIVE_PAD, True,
                )  # fmt: skip
        else:
            _choose(
                bias_ptr, choice_ptr, products_ptr, experts_ptr, weights_ptr, shared_ptr,
                state_ptr, kept_ptr, scales_ptr, rows, num_rows, E, ACTIVE, GROUPS, ACTIVE_GROUPS,
                SCALE, SIGMOID, RENORMALISES, SHARED, BIAS, CHOICE, DRAWN, TILES, KEPT, SCALES,
                ROWS, ROWS, PARTS, STRIDE, E_PAD, ACTIVE_PAD, False,
            )  # fmt: skip


@triton.jit
def _router_tile(router_ptr, own, at, COUNT: tl.constexpr, HIDDEN: tl.constexpr):
    """The router's columns `at` of the experts `own`, 0 where there are none."""
    shown = (own < COUNT)[:, None] & (at < HIDDEN)[None, :]
    return tl.load(router_ptr + own[:, None] * HIDDEN + at[None, :], shown, 0.0)


@triton.jit
def _normed_sums(
    x_ptr, router_ptr, norm_ptr, normed_ptr,
    ahead,  # tiles of the router that are read already, or none
    norms,  # weights of the norm, as many
    rows, own, part, num_rows, eps, COUNT: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    DOT: tl.constexpr, SQUARES: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """Products [ROWS, EXPERTS] of rows that are normed, and written by one program of each part."""
    factors = _norm_factors(x_ptr, rows, num_rows, eps, HIDDEN, SQUARES, ROWS, FILLED)
    is_writer = tl.program_id(0) < PARTS
    sums = tl.zeros([ROWS, EXPERTS], tl.float32)
    for start in tl.static_range(0, PART, COLUMNS):
        at = part * PART + start + tl.arange(0, COLUMNS)
        if len(ahead) > 0:
            router = ahead[start // COLUMNS]
            norm = norms[start // COLUMNS]
        else:
            router = _router_tile(router_ptr, own, at, COUNT, HIDDEN)
            norm = tl.load(norm_ptr + at, at < HIDDEN, 0.0)
        shown = (rows < num_rows)[:, None] & (at < HIDDEN)[None, :]
        place = rows.to(tl.int64)[:, None] * HIDDEN + at[None, :]
        x = tl.load(x_ptr + place, shown, 0.0)
        # Rounded as `kernels.rms_norm` does.
        whole = (x.to(tl.float32) * factors[:, None]).to(x.dtype).to(tl.float32)
        normed = (whole * norm.to(tl.float32)[None, :]).to(x.dtype)
        tl.store(normed_ptr + place, normed, shown & is_writer)
        sums = tl.dot(normed.to(DOT), tl.trans(router.to(DOT)), sums, input_precision="ieee")
    return sums


@triton.jit
def _norm_factors(
    x_ptr, rows, num_rows, eps, HIDDEN: tl.constexpr, SQUARES: tl.constexpr, ROWS: tl.constexpr,
    FILLED: tl.constexpr,  # the most rows of the tile that there are
):  # fmt: skip
    """What the norm multiplies each row by, before its weights; 0 behind the first FILLED."""
    filled = tl.program_id(1) * ROWS + tl.arange(0, FILLED)
    squares = tl.zeros([FILLED, SQUARES], tl.float32)
    for start in tl.static_range(0, HIDDEN, SQUARES):
        at = start + tl.arange(0, SQUARES)
        x = tl.load(
            x_ptr + filled.to(tl.int64)[:, None] * HIDDEN + at[None, :],
            (filled < num_rows)[:, None] & (at < HIDDEN)[None, :],
            0.0,
        ).to(tl.float32)
        squares += x * x
    factors = tl.rsqrt(tl.sum(squares, 1) / HIDDEN + eps)
    if FILLED == ROWS:
        return factors
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.sum(tl.where(rows[:, None] == filled[None, :], factors[None, :], 0.0), 1)


@triton.jit
def _choose(
    bias_ptr, choice_ptr, products_ptr, experts_ptr, weights_ptr, shared_ptr, state_ptr, kept_ptr,
    scales_ptr, rows, num_rows,
    E: tl.constexpr, ACTIVE: tl.constexpr, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr,
    SCALE: tl.constexpr, SIGMOID: tl.constexpr, RENORMALISES: tl.constexpr, SHARED: tl.constexpr,
    BIAS: tl.constexpr, CHOICE: tl.constexpr, DRAWN: tl.constexpr, TILES: tl.constexpr,
    KEPT: tl.constexpr, SCALES: tl.constexpr,
    ROWS: tl.constexpr,  # rows that choose
    TILE_ROWS: tl.constexpr,  # rows of a tile of products
    PARTS: tl.constexpr, STRIDE: tl.constexpr, E_PAD: tl.constexpr, ACTIVE_PAD: tl.constexpr,
    RANKED: tl.constexpr,  # whether all experts of the row, which is one, are compared at once
):  # fmt: skip
    """The experts of a tile's rows, the best first, and their weights."""
    numbers = tl.arange(0, E_PAD)
    is_expert = (numbers < E)[None, :]
    products = tl.zeros([ROWS, E_PAD], tl.float32)
    for part in tl.static_range(PARTS):
        place = (part * (tl.num_programs(1) * TILE_ROWS) + rows) * STRIDE
        # By way of L2: L1 may hold what stood there before.
        products += tl.load(
            products_ptr + place[:, None] + numbers[None, :], is_expert, 0.0, cache_modifier=".cg"
        )
    if SHARED:
        _weigh_shared(products_ptr, shared_ptr, rows, num_rows, E, PARTS, ROWS, TILE_ROWS, STRIDE)
    if DRAWN:
        products = _drawn(products, state_ptr, rows, numbers, TILES, E_PAD)
    if BIAS:
        products += tl.load(bias_ptr + numbers, numbers < E, 0.0).to(tl.float32)[None, :]
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-tl.maximum(products, -80.0)))
    else:
        products = tl.where(is_expert, products, -float("inf"))
        powers = tl.exp(products - tl.max(products, 1)[:, None])
        scores = powers / tl.sum(powers, 1)[:, None]
    wanted = scores
    if CHOICE:
        wanted += tl.load(choice_ptr + numbers, numbers < E, 0.0)[None, :]
    wanted = tl.where(is_expert, wanted, -float("inf"))
    if GROUPS > 1:
        wanted = _among_groups(wanted, numbers, E, GROUPS, ACTIVE_GROUPS, ROWS, E_PAD)
    experts, places, weights = _chosen(
        wanted, scores, is_expert, numbers, E, ACTIVE, CHOICE, ROWS, E_PAD, ACTIVE_PAD, RANKED
    )
    if RENORMALISES:
        weights /= tl.sum(weights, 1)[:, None]
    weights = _scaled(weights, experts, scales_ptr, SCALES)
    out = rows.to(tl.int64)[:, None] * ACTIVE + places
    inside = (rows < num_rows)[:, None] & (places < ACTIVE)
    tl.store(experts_ptr + out, experts, inside)
    tl.store(weights_ptr + out, weights * SCALE, inside)
    if DRAWN:
        tl.store(kept_ptr + out, experts, inside & (rows < KEPT)[:, None])


@triton.jit
def _chosen(
    wanted, scores, is_expert, numbers, E: tl.constexpr, ACTIVE: tl.constexpr,
    CHOICE: tl.constexpr, ROWS: tl.constexpr, E_PAD: tl.constexpr, ACTIVE_PAD: tl.constexpr,
    RANKED: tl.constexpr,
):  # fmt: skip
    """Experts of each row, the places that they take, of which those below ACTIVE count, and their
    scores.
    """
    if RANKED:
        places = _ranks(wanted, is_expert, numbers, E_PAD)[None, :]
        own = tl.minimum(numbers, E - 1)[None, :]
        return own, places, tl.where(places < ACTIVE, scores, 0.0)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        places = tl.arange(0, ACTIVE_PAD)
        experts, weights = _best(
            wanted, scores, is_expert, numbers, places, ACTIVE, CHOICE, ROWS, E_PAD, ACTIVE_PAD
        )
        return experts, places[None, :], weights


@triton.jit
def _weigh_shared(
    products_ptr, shared_ptr, rows, num_rows, E: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, TILE_ROWS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """The weights of the shared expert, whose gate is the product behind those of experts."""
    gate = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(PARTS):
        place = (part * (tl.num_programs(1) * TILE_ROWS) + rows) * STRIDE
        gate += tl.load(products_ptr + place + E, cache_modifier=".cg")
    gate = 1.0 / (1.0 + tl.exp(-tl.maximum(gate, -80.0)))
    tl.store(shared_ptr + rows, gate, rows < num_rows)


@triton.jit
def _best(
    wanted, scores, is_expert, numbers, places, ACTIVE: tl.constexpr, CHOICE: tl.constexpr,
    ROWS: tl.constexpr, E_PAD: tl.constexpr, ACTIVE_PAD: tl.constexpr,
):  # fmt: skip
    """The ACTIVE best experts of each row, the best first, and their scores."""
    experts = tl.zeros([ROWS, ACTIVE_PAD], tl.int32)
    weights = tl.zeros([ROWS, ACTIVE_PAD], tl.float32)
    keys = _keys(wanted, is_expert, numbers, E_PAD)
    for place in tl.static_range(ACTIVE):
        # Of equal ones the lowest. Rows that are no numbers, as those that pad a step may be,
        # choose some expert.
        key = tl.max(keys, 1)
        is_best = keys == key[:, None]
        if CHOICE:
            score = tl.sum(tl.where(is_best, scores, 0.0), 1)
        else:
            score = _ordered((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        keys = tl.where(is_best, -0x7FFFFFFFFFFFFFFF, keys)
        best = E_PAD - 1 - (key & 0xFFFFFFFF).to(tl.int32)
        is_place = (places == place)[None, :]
        experts = tl.where(is_place, best[:, None], experts)
        weights = tl.where(is_place, score[:, None], weights)
    return experts, weights


@triton.jit
def _keys(wanted, is_expert, numbers, E_PAD: tl.constexpr):
    """What experts are ordered by, int64 [rows, E_PAD], no two of a row alike: of equally wanted
    ones the lowest is the greatest.
    """
    keys = (_ordered(wanted.to(tl.int32, bitcast=True)).to(tl.int64) << 32) + (E_PAD - 1 - numbers)
    return tl.where(is_expert, keys, -0x7FFFFFFFFFFFFFFF)


@triton.jit
def _ranks(wanted, is_expert, numbers, E_PAD: tl.constexpr):
    """How many experts of one row [1, E_PAD] are better than each, int32 [E_PAD]. What is no expert
    has at least as many ahead of it as there are experts.
    """
    keys = tl.reshape(_keys(wanted, is_expert, numbers, E_PAD), [E_PAD])
    return tl.sum((keys[:, None] > keys[None, :]).to(tl.int32), 0)


@triton.jit
def _drawn(products, state_ptr, rows, numbers, TILES: tl.constexpr, E_PAD: tl.constexpr):
    """Numbers from 0 to 1 if the state says so, else the products. They depend on row, expert and
    the number of draws of this tile, by a hash of 32 bits (lowbias32).
    """
    count_ptr = state_ptr + 1 + tl.program_id(1) % TILES
    count = tl.load(count_ptr)
    is_on = tl.load(state_ptr) != 0
    tl.debug_barrier()  # every thread has read the count before one replaces it
    tl.store(count_ptr, count + 1)
    seed = _mixed(tl.full([1, 1], 1, tl.uint32) * count.to(tl.uint32))
    bits = _mixed((rows[:, None] * E_PAD + numbers[None, :]).to(tl.uint32) ^ seed)
    return tl.where(is_on, (bits >> 8).to(tl.float32) * (1.0 / (1 << 24)), products)


@triton.jit
def _ordered(bits):
    """The bits of some float32 as int32 that compare as these do, and the way back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _mixed(bits):
    """A hash of each of some uint32."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _scaled(weights, experts, scales_ptr, SCALES: tl.constexpr):
    """The weights, times the scale of each expert if experts have one."""
    if SCALES:
        weights *= tl.load(scales_ptr + experts)
    return weights


@triton.jit
def _first_of_best(wanted, numbers, SIZE: tl.constexpr):
    """For each row the lowest index of its greatest number; SIZE if it has none."""
    is_best = wanted == tl.max(wanted, 1)[:, None]
    return tl.min(tl.where(is_best, numbers[None, :], SIZE), 1)


@triton.jit
def _among_groups(
    wanted, numbers, E: tl.constexpr, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr,
    ROWS: tl.constexpr, E_PAD: tl.constexpr,
):  # fmt: skip
    """`wanted` without the experts of groups that lose; a group is worth its two best."""
    group = numbers // (E // GROUPS)
    worth = tl.full([ROWS, E_PAD], -float("inf"), tl.float32)  # of group g in column g
    for number in tl.static_range(GROUPS):
        own = tl.where((group == number)[None, :], wanted, -float("inf"))
        first = _first_of_best(own, numbers, E_PAD)
        rest = tl.where(numbers[None, :] == first[:, None], -float("inf"), own)
        second = tl.max(rest, 1)
        both = tl.max(own, 1) + tl.where(second == -float("inf"), 0.0, second)
        worth = tl.where((numbers == number)[None, :], both[:, None], worth)
    kept = tl.zeros([ROWS, E_PAD], tl.int32)
    for _ in tl.static_range(ACTIVE_GROUPS):
        best = _first_of_best(worth, numbers, E_PAD)
        kept = tl.where(group[None, :] == best[:, None], 1, kept)
        worth = tl.where(numbers[None, :] == best[:, None], -float("inf"), worth)
    return tl.where(kept == 1, wanted, -float("inf"))


def route(
    x: Tensor, weights: ExpertWeights, routing: Routing, *, invariant: bool = False
) -> Routed:
    """See `kernels.experts.route`. Launches on one device must be ordered, and the first not inside
    a capture. Raises `ValueError` for more rows than counters.
    """
    is_long = x.shape[0] > _LONG_ROWS and not invariant
    return _routed(x, None, None, 0.0, weights, routing, is_long=is_long)


def norm_route(
    x: Tensor, norm: Tensor, eps: float, weights: ExpertWeights, routing: Routing
) -> tuple[Tensor, Routed]:
    """See `kernels.experts.norm_route`, of up to `NORMED_ROWS` rows; not invariant. As `route`."""
    if x.shape[0] > NORMED_ROWS:
        raise ValueError(f"{x.shape[0]} rows to be normed; at most {NORMED_ROWS}")
    normed = torch.empty_like(x)
    return normed, _routed(x, norm, normed, eps, weights, routing)


def _routed(
    x: Tensor,
    norm: Tensor | None,
    normed: Tensor | None,
    eps: float,
    weights: ExpertWeights,
    routing: Routing,
    *,
    is_long: bool = False,
) -> Routed:
    num_rows, hidden = x.shape
    router = weights.router
    has_gate = router.shape[0] > routing.num_experts
    drawn = weights.drawn
    is_ranked = norm is not None and num_rows <= _RANKED_ROWS
    sizes = RouterSizes(
        routing,
        hidden,
        eps,
        has_gate=has_gate,
        has_bias=weights.router_bias is not None,
        has_choice=weights.choice_bias is not None,
        kept=0 if drawn is None else drawn.kept.shape[0],
        has_scales=weights.scales is not None,
        dot=dot_type(x),
        norms=norm is not None,
        is_ranked=is_ranked,
        is_long=is_long,
    )
    ready = _ready(x.device, sizes)
    tiles = triton.cdiv(num_rows, ready.rows)
    if tiles > _COUNTERS:
        raise ValueError(f"{num_rows} rows in one launch; at most {_COUNTERS * ready.rows}")
    experts = torch.empty(num_rows, routing.num_active, dtype=torch.int32, device=x.device)
    chosen = torch.empty(num_rows, routing.num_active, dtype=torch.float32, device=x.device)
    shared = torch.empty(num_rows, dtype=torch.float32, device=x.device) if has_gate else None
    if num_rows:
        products = scratch(x.device, _PARTS * tiles * ready.rows * ready.stride)
        biases = weights.router_bias, weights.choice_bias
        ready.launch(
            (_PARTS * ready.stride // ready.experts, tiles, 1),
            (
                x, router, *[x if bias is None else bias for bias in biases], products,
                _counters(x.device), experts, chosen, chosen if shared is None else shared,
                *((experts, experts) if drawn is None else drawn),
                chosen if weights.scales is None else weights.scales,
                x if norm is None else norm, x if normed is None else normed,
            ),
            (num_rows,),
        )  # fmt: skip
    return Routed(experts, chosen, shared)


class RouterSizes(NamedTuple):
    """What the router is compiled for: the columns of a row, which operands there are, the rows
    whose experts are kept (0: none are drawn), what products are taken in, whether rows are normed
    first, with `eps`, whether so few come that they may choose one after the other, and whether so
    many that tiles are large.
    """

    routing: Routing
    hidden: int
    eps: float
    has_gate: bool
    has_bias: bool
    has_choice: bool
    kept: int
    has_scales: bool
    dot: tl.dtype
    norms: bool
    is_ranked: bool
    is_long: bool


class _Ready(NamedTuple):
    launch: Launch
    stride: int
    rows: int
    experts: int


@cache
def _ready(device: torch.device, sizes: RouterSizes) -> _Ready:
    routing = sizes.routing
    padded = triton.next_power_of_2(routing.num_experts)
    is_ranked = sizes.is_ranked and padded <= _RANKED_EXPERTS
    padded = max(padded, _LEAST_RANKED) if is_ranked else padded
    rows = min(_LONG_TILE, max(_ROWS, _LONG_SIZE // padded)) if sizes.is_long else _ROWS
    experts = min(_LONG_TILE, max(_EXPERTS, padded)) if sizes.is_long else _EXPERTS
    stride = triton.cdiv(routing.num_experts + sizes.has_gate, experts) * experts
    part = triton.cdiv(triton.cdiv(sizes.hidden, _COLUMNS), _PARTS) * _COLUMNS
    constants = {
        "eps": sizes.eps, "E": routing.num_experts, "ACTIVE": routing.num_active,
        "HIDDEN": sizes.hidden, "GROUPS": routing.num_groups,
        "ACTIVE_GROUPS": routing.num_active_groups, "SCALE": routing.scale,
        "SIGMOID": routing.is_sigmoid, "RENORMALISES": routing.renormalises,
        "SHARED": sizes.has_gate, "BIAS": sizes.has_bias, "CHOICE": sizes.has_choice,
        "DRAWN": sizes.kept > 0, "TILES": DRAWN_TILES, "KEPT": sizes.kept,
        "SCALES": sizes.has_scales, "ROWS": rows, "EXPERTS": experts, "COLUMNS": _COLUMNS,
        "PARTS": _PARTS, "PART": part, "STRIDE": stride, "E_PAD": padded,
        "ACTIVE_PAD": triton.next_power_of_2(routing.num_active), "DOT": sizes.dot,
        "NORM": sizes.norms, "SQUARES": _SQUARES, "AHEAD": sizes.norms and part <= _AHEAD,
        "RANKED": is_ranked, "RANKED_ROWS": _RANKED_ROWS, "PDL": has_pdl(device),
    }  # fmt: skip
    warps = 4 if padded <= _EXPERTS_OF_4_WARPS and not sizes.is_long else 8
    stages = 3 if sizes.is_long else 4
    launch = Launch(_route_kernel, constants, num_warps=warps, num_stages=stages)
    return _Ready(launch, stride, rows, experts)


@cache
def _counters(device: torch.device) -> Tensor:
    """Counters of a launch: zeros, which every launch leaves as zeros."""
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
