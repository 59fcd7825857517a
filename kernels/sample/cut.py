"""Where top_k, top_p and min_p cut off, without sorting, in launches that wait for nothing.

Owns the search. What the filters keep is a beginning of the logits in descending order, lowest id
first of equals. So it is described by the key of its last logit (an integer that orders as the
logits do) and how many of that key it holds. Both are found from the highest bits of the key down,
two bits a launch: count (top_k), then sum up the shares (top_p), at or above three keys at once.

Counts are exact. Shares are float32 sums in a fixed order over a tile, then integers of 2**-40 of
the best token's share: the same every time, and within 1e-6 of the true ones.
"""

from functools import cache, partial
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch
from kernels.sample.reference import Draws

UNUSED_BITS: Final = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 12}
"""Low bits of a key that are 0 in every logit; what remains is an even number of bits."""


class Cut(NamedTuple):
    """What is kept of each row: above `keys`, the first `ties` of `keys`, none below `floors`.

    keys and ties int32 [rows], floors float32 [rows]; `equals` int32 [rows, tiles] counts the
    logits of the key in each tile.
    """

    keys: Tensor
    ties: Tensor
    floors: Tensor
    equals: Tensor


@triton.jit
def order_key(logits, UNUSED: tl.constexpr):
    """int32 that order as the float32 logits do; both zeros are one."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> UNUSED


@triton.jit
def is_kept(logits, keys, rank, cut, ties, floor):
    """Whether the filters keep these logits; `rank` counts the logits whose key equals the cut's,
    by rising id.
    """
    return ((keys > cut) | ((keys == cut) & (rank < ties))) & (logits >= floor)


@triton.jit
def _share(logits, top, temperature):
    """Shares relative to the best token's."""
    return tl.exp2((logits - top) * (1.4426950408889634 / temperature))


@triton.jit
def _fixed(share):
    return (share.to(tl.float64) * 1099511627776.0).to(tl.int64)


@triton.jit
def _share_of_key(key, top, temperature, UNUSED: tl.constexpr):
    """The share, as an integer, of one logit of this key."""
    ordered = tl.where(key < 0, (key << UNUSED) | ((1 << UNUSED) - 1), key << UNUSED)
    bits = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.int32)
    return _fixed(_share(bits.to(tl.float32, bitcast=True), top, temperature))


@triton.jit
def _lowest(digits: tl.constexpr):
    """The key that is 0 where keys count from 0."""
    return -(tl.full((), 1, tl.int64) << (2 * digits - 1))


@triton.jit
def _interval(sums_ptr, found_ptr, at, stride, digits, target, number):
    """(lowest key, what stands above the interval) before a pass; keys count from 0.

    `at` is the place of the first pass and `stride` the distance to the next one's. Before pass 0
    the interval is everything; each pass has cut it to a quarter.
    """
    base = tl.full((), 0, tl.int64)
    above = tl.full((), 0, tl.int64)
    if number > 0:
        place = at + (number - 1) * stride
        first = tl.load(sums_ptr + 4 * place)
        second = tl.load(sums_ptr + 4 * place + 1)
        third = tl.load(sums_ptr + 4 * place + 2)
        digit = (first >= target).to(tl.int64) + (second >= target) + (third >= target)
        base = tl.load(found_ptr + 2 * place) + (digit << (2 * (digits - number)))
        above = tl.load(found_ptr + 2 * place + 1)
        above = tl.where(digit == 2, third, above)
        above = tl.where(digit == 1, second, above)
        above = tl.where(digit == 0, first, above)
    return base, above


@triton.jit
def _top_k_cut(sums_ptr, found_ptr, row, num_rows, top_k, vocab_size, DIGITS: tl.constexpr):
    """(key counted from 0, ties) of the top_k cut; (-1, 0) if the row has none."""
    key = tl.full((), -1, tl.int64)
    ties = tl.full((), 0, tl.int64)
    if (top_k > 0) & (top_k < vocab_size):
        key, above = _interval(sums_ptr, found_ptr, row, num_rows, DIGITS, top_k, DIGITS)
        ties = top_k - above
    return key, ties


@triton.jit
def _share_target(sums_ptr, at, top_p):
    """The least share above a token that top_p leaves out, as an integer."""
    total = tl.load(sums_ptr + 4 * at + 3)
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _load(logits_ptr, row, tile, vocab_size, TILE: tl.constexpr, UNUSED: tl.constexpr):
    """(float32 logits, keys) of a tile; past the end stand -inf and the lowest int32."""
    ids = tile * TILE + tl.arange(0, TILE)
    inside = ids < vocab_size
    at = logits_ptr + row.to(tl.int64) * vocab_size + ids
    logits = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    return logits, tl.where(inside, order_key(logits, UNUSED), -0x80000000)


@triton.jit
def _top_logit(maxima_ptr, row, num_tiles, TILES: tl.constexpr):
    tiles = tl.arange(0, TILES)
    at = maxima_ptr + row * num_tiles + tiles
    return tl.max(tl.load(at, mask=tiles < num_tiles, other=float("-inf")), 0)


@triton.jit
def _maxima_kernel(
    logits_ptr,  # [T, vocab_size]
    maxima_ptr,  # float32 [T, num_tiles], the best logit of each tile
    vocab_size,  # tokens
    num_tiles,  # tiles of a row
    TILE: tl.constexpr,  # tokens of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, row = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    logits, _ = _load(logits_ptr, row, tile, vocab_size, TILE, 0)
    tl.store(maxima_ptr + row * num_tiles + tile, tl.max(logits, 0))


@triton.jit
def _remember(found_ptr, place, base, above, is_first):
    """Keep what a pass started from for the next one."""
    tl.store(found_ptr + 2 * place, base, mask=is_first)
    tl.store(found_ptr + 2 * place + 1, above, mask=is_first)


# One compilation for all passes.
@triton.jit(do_not_specialize=["number"])
def _count_kernel(
    logits_ptr,  # [T, vocab_size]
    temperature_ptr,  # float32 [T]; 0: the row is not drawn
    top_k_ptr,  # int32 [T]; 0: none
    sums_ptr,  # int64 [2, DIGITS, T, 4], of counts, then of shares: three sums and the total
    found_ptr,  # int64 [2, DIGITS, T, 2]: lowest key of the interval, what stands above it
    number,  # number of the pass, which looks for two bits of the key
    vocab_size,  # tokens
    DIGITS: tl.constexpr,  # passes: pairs of bits of a key
    UNUSED: tl.constexpr,  # low bits that are 0 in every key
    TILE: tl.constexpr,  # tokens of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """A pass of top_k."""
    tile, row, num_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    top_k = tl.load(top_k_ptr + row).to(tl.int64)
    if (tl.load(temperature_ptr + row) > 0.0) & (top_k > 0) & (top_k < vocab_size):
        _, keys = _load(logits_ptr, row, tile, vocab_size, TILE, UNUSED)
        base, above = _interval(sums_ptr, found_ptr, row, num_rows, DIGITS, top_k, number)
        place = row + number * num_rows
        _remember(found_ptr, place, base, above, tile == 0)
        step = tl.full((), 1, tl.int64) << (2 * (DIGITS - 1 - number))
        for j in tl.static_range(1, 4):
            start = base + j * step
            bound = (start + _lowest(DIGITS)).to(tl.int32)
            amount = tl.sum((keys >= bound).to(tl.int32), 0).to(tl.int64)
            tl.atomic_add(sums_ptr + 4 * place + j - 1, amount, sem="relaxed")


@triton.jit(do_not_specialize=["number"])
def _sum_kernel(
    logits_ptr,  # [T, vocab_size]
    temperature_ptr,  # float32 [T]; 0: the row is not drawn
    top_k_ptr,  # int32 [T]; 0: none
    top_p_ptr,  # float32 [T]; 1: none
    maxima_ptr,  # float32 [T, num_tiles], the best logit of each tile
    sums_ptr,  # int64 [2, DIGITS, T, 4], of counts, then of shares: three sums and the total
    found_ptr,  # int64 [2, DIGITS, T, 2]: lowest key of the interval, what stands above it
    number,  # number of the pass, which looks for two bits of the key
    vocab_size,  # tokens
    num_tiles,  # tiles of a row
    DIGITS: tl.constexpr,  # passes: pairs of bits of a key
    UNUSED: tl.constexpr,  # low bits that are 0 in every key
    TILE: tl.constexpr,  # tokens of a program
    TILES: tl.constexpr,  # the power of two from `num_tiles` on
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """A pass of top_p, over the shares of what top_k keeps; the first also sums up all."""
    tile, row, num_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    temperature = tl.load(temperature_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    if (temperature > 0.0) & (top_p < 1.0):
        logits, keys = _load(logits_ptr, row, tile, vocab_size, TILE, UNUSED)
        first = DIGITS * num_rows + row
        target = tl.full((), 1, tl.int64)
        if number > 0:
            target = _share_target(sums_ptr, first, top_p)
        base, above = _interval(sums_ptr, found_ptr, first, num_rows, DIGITS, target, number)
        place = first + number * num_rows
        _remember(found_ptr, place, base, above, tile == 0)
        top_k = tl.load(top_k_ptr + row).to(tl.int64)
        k_key, k_ties = _top_k_cut(sums_ptr, found_ptr, row, num_rows, top_k, vocab_size, DIGITS)
        top = _top_logit(maxima_ptr, row, num_tiles, TILES)
        cut = k_key + _lowest(DIGITS)
        shares = _share(logits, top, temperature)
        shares = tl.where(keys > tl.maximum(cut, -0x80000000).to(tl.int32), shares, 0.0)
        # The kept logits of the cut's own key, by one program of the row.
        counts = (tile == 0) & (k_key >= 0)
        ties = tl.where(counts, k_ties * _share_of_key(cut, top, temperature, UNUSED), 0)
        step = tl.full((), 1, tl.int64) << (2 * (DIGITS - 1 - number))
        for j in tl.static_range(1, 4):
            start = base + j * step
            bound = (start + _lowest(DIGITS)).to(tl.int32)
            amount = _fixed(tl.sum(tl.where(keys >= bound, shares, 0.0), 0))
            amount += tl.where(start <= k_key, ties, 0)
            tl.atomic_add(sums_ptr + 4 * place + j - 1, amount, sem="relaxed")
        if number == 0:
            total = _fixed(tl.sum(shares, 0)) + ties
            tl.atomic_add(sums_ptr + 4 * place + 3, total, sem="relaxed")


@triton.jit
def _close_kernel(
    logits_ptr,  # [T, vocab_size]
    temperature_ptr,  # float32 [T]; 0: the row is not drawn
    top_k_ptr,  # int32 [T]; 0: none
    top_p_ptr,  # float32 [T]; 1: none
    maxima_ptr,  # float32 [T, num_tiles], the best logit of each tile
    sums_ptr,  # int64 [2, DIGITS, T, 4], of counts, then of shares: three sums and the total
    found_ptr,  # int64 [2, DIGITS, T, 2]: lowest key of the interval, what stands above it
    min_p_ptr,  # float32 [T]; 0: none
    keys_ptr,  # int32 [T], of the row's `Cut`, which comes out, as the three behind
    ties_ptr,  # int32 [T]
    floors_ptr,  # float32 [T]
    equals_ptr,  # int32 [T, num_tiles]
    vocab_size,  # tokens
    num_tiles,  # tiles of a row
    DIGITS: tl.constexpr,  # passes: pairs of bits of a key
    UNUSED: tl.constexpr,  # low bits that are 0 in every key
    TILE: tl.constexpr,  # tokens of a program
    TILES: tl.constexpr,  # the power of two from `num_tiles` on
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, row, num_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    temperature = tl.load(temperature_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    top_k = tl.where(temperature > 0.0, tl.load(top_k_ptr + row), 0).to(tl.int64)
    top = _top_logit(maxima_ptr, row, num_tiles, TILES)
    key, ties = _top_k_cut(sums_ptr, found_ptr, row, num_rows, top_k, vocab_size, DIGITS)
    if (temperature > 0.0) & (top_p < 1.0):
        first = DIGITS * num_rows + row
        target = _share_target(sums_ptr, first, top_p)
        p_key, above = _interval(sums_ptr, found_ptr, first, num_rows, DIGITS, target, DIGITS)
        share = tl.maximum(_share_of_key(p_key + _lowest(DIGITS), top, temperature, UNUSED), 1)
        p_ties = tl.maximum((target - above + share - 1) // share, 1)
        ties = tl.where(p_key > key, p_ties, tl.where(p_key == key, tl.minimum(ties, p_ties), ties))
        key = tl.maximum(key, p_key)
    ties = tl.minimum(ties, 0x7FFFFFFF).to(tl.int32)
    cut = tl.maximum(key + _lowest(DIGITS), -0x80000000).to(tl.int32)
    _, keys = _load(logits_ptr, row, tile, vocab_size, TILE, UNUSED)
    equals = tl.sum(((keys == cut) & (keys > -0x80000000)).to(tl.int32), 0)
    tl.store(equals_ptr + row * num_tiles + tile, equals)
    if tile == 0:
        floor = tl.full((), float("-inf"), tl.float32)
        if (temperature > 0.0) & (min_p > 0.0):
            floor = top + temperature * tl.log(tl.minimum(min_p, 1.0))
        tl.store(keys_ptr + row, cut)
        tl.store(ties_ptr + row, ties)
        tl.store(floors_ptr + row, floor)


def find_cut(logits: Tensor, draws: Draws, tile: int, num_warps: int) -> Cut:
    """What the filters of `draws` keep of each row of logits [rows, vocab]; at least one token."""
    num_rows, vocab_size = logits.shape
    num_tiles, device = triton.cdiv(vocab_size, tile), logits.device
    unused = UNUSED_BITS[logits.dtype]
    digits = (32 - unused) // 2
    shape = num_rows, num_tiles
    maxima = torch.empty(shape, dtype=torch.float32, device=device)
    # Scratch numbers of the counts, then of the shares, by pass and row: three sums and the total;
    # interval and above.
    sums = torch.zeros(2, digits, num_rows, 4, dtype=torch.int64, device=device)
    found = torch.empty(2, digits, num_rows, 2, dtype=torch.int64, device=device)
    inputs = logits, draws.temperature, draws.top_k, draws.top_p, maxima, sums, found
    cut = Cut(
        keys=torch.empty(num_rows, dtype=torch.int32, device=device),
        ties=torch.empty(num_rows, dtype=torch.int32, device=device),
        floors=torch.empty(num_rows, dtype=torch.float32, device=device),
        equals=torch.empty(shape, dtype=torch.int32, device=device),
    )
    grid = num_tiles, num_rows, 1
    launches = _launches(device, logits.dtype, vocab_size, tile, num_warps)
    launches.maxima(grid, (logits, maxima))
    counted = logits, draws.temperature, draws.top_k, sums, found
    for number in range(digits):
        launches.counts(grid, counted, (number,))
    for number in range(digits):
        launches.sums(grid, inputs, (number,))
    launches.close(grid, (*inputs, draws.min_p, *cut))
    return cut


class _Launches(NamedTuple):
    """The launches of the four kernels."""

    maxima: Launch
    counts: Launch
    sums: Launch
    close: Launch


@cache
def _launches(
    device: torch.device, dtype: torch.dtype, vocab_size: int, tile: int, num_warps: int
) -> _Launches:
    unused = UNUSED_BITS[dtype]
    num_tiles = triton.cdiv(vocab_size, tile)
    vocab, tiles = {"vocab_size": vocab_size}, {"num_tiles": num_tiles}
    block = {"TILE": tile, "PDL": has_pdl(device)}
    bits = {"DIGITS": (32 - unused) // 2, "UNUSED": unused}
    padded = {"TILES": triton.next_power_of_2(num_tiles)}
    launch = partial(Launch, num_warps=num_warps)
    return _Launches(
        launch(_maxima_kernel, vocab | tiles | block),
        launch(_count_kernel, vocab | block | bits),
        launch(_sum_kernel, vocab | tiles | block | bits | padded),
        launch(_close_kernel, vocab | tiles | block | bits | padded),
    )
