"""How well the tokens of a tile can score at most.

Owns the device functions that read a tile of logits. The bound costs one hardware logarithm where
the score needs two good ones: a noise's uniform is u = 1 - v, and -log(u) >= v, so that
-log(-log(u)) <= -log(v), with little between them for the small v that win.
"""

import triton
import triton.language as tl

from kernels.philox.kernel import philox_words
from kernels.sample.cut import is_kept, order_key


@triton.jit
def row_draw(seeds_ptr, temperature_ptr, positions_ptr, row):
    """(temperature, position, low and high key) of a row; all but the first uint32."""
    position = tl.load(positions_ptr + row).to(tl.uint32)
    seed = tl.load(seeds_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    return temperature, position, seed.to(tl.uint32), (seed >> 32).to(tl.uint32)


@triton.jit
def load_tile(row_ptr, start, vocab_size, TILE: tl.constexpr):
    """float32 logits of tokens start + 4 g + lane, four blocks [TILE / 4] by lane.

    Past the end stands -inf; what is not a number becomes inf, which wins everywhere and is seen.
    """
    ids = start + tl.arange(0, TILE)
    logits = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    logits = tl.where(logits < float("inf"), logits, float("inf"))
    even, odd = tl.split(tl.reshape(logits, (TILE // 4, 2, 2)))
    lane0, lane2 = tl.split(even)
    lane1, lane3 = tl.split(odd)
    return lane0, lane1, lane2, lane3


@triton.jit
def keep_filtered(
    l0, l1, l2, l3, row, tile, num_tiles, cut_ptrs, TILES: tl.constexpr, UNUSED: tl.constexpr
):
    """The lanes of a tile with -inf for what the row's `Cut` leaves out."""
    keys_ptr, ties_ptr, floors_ptr, equals_ptr = cut_ptrs
    cut, floor = tl.load(keys_ptr + row), tl.load(floors_ptr + row)
    tiles = tl.arange(0, TILES)
    before = tl.load(equals_ptr + row * num_tiles + tiles, mask=tiles < tile, other=0)
    ties = tl.load(ties_ptr + row) - tl.sum(before, 0)
    k0, k1 = order_key(l0, UNUSED), order_key(l1, UNUSED)
    k2, k3 = order_key(l2, UNUSED), order_key(l3, UNUSED)
    e0, e1 = (k0 == cut).to(tl.int32), (k1 == cut).to(tl.int32)
    e2, e3 = (k2 == cut).to(tl.int32), (k3 == cut).to(tl.int32)
    equals = e0 + e1 + e2 + e3
    r0 = tl.cumsum(equals, 0) - equals
    r1 = r0 + e0
    r2 = r1 + e1
    r3 = r2 + e2
    nothing = float("-inf")
    l0 = tl.where(is_kept(l0, k0, r0, cut, ties, floor), l0, nothing)
    l1 = tl.where(is_kept(l1, k1, r1, cut, ties, floor), l1, nothing)
    l2 = tl.where(is_kept(l2, k2, r2, cut, ties, floor), l2, nothing)
    l3 = tl.where(is_kept(l3, k3, r3, cut, ties, floor), l3, nothing)
    return l0, l1, l2, l3


@triton.jit
def _noise_bound(word, FAST: tl.constexpr):
    """-log(v), v = 1 - u exactly; FAST within 1e-5."""
    bits = ((word ^ 0xFFFFFFFF) >> 9) | 0x3F800000
    v = bits.to(tl.float32, bitcast=True) - 0.99999994
    if FAST:
        log2 = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        log2 = tl.log2(v)
    return log2 * -0.6931472


@triton.jit
def tile_bounds(
    logits_ptr,
    row,
    tile,
    vocab_size,
    num_tiles,
    draw,
    cut_ptrs,
    FILTERED: tl.constexpr,
    UNUSED: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    FAST: tl.constexpr,
):
    """Bounds of the scores of a tile's tokens, by lane as `load_tile`; greedy: the logits.

    What is not a number is inf, filtered or not; what the filters leave out is -inf.
    """
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    b0, b1, b2, b3 = load_tile(row_ptr, tile * TILE, vocab_size, TILE)
    if FILTERED:
        b0, b1, b2, b3 = keep_filtered(
            b0, b1, b2, b3, row, tile, num_tiles, cut_ptrs, TILES, UNUSED
        )
    temperature, position, key_low, key_high = draw
    if temperature > 0.0:
        groups = tile * (TILE // 4) + tl.arange(0, TILE // 4)
        w0, w1, w2, w3 = philox_words(groups, position, key_low, key_high)
        scale = 1.0 / temperature
        b0 = b0 * scale + _noise_bound(w0, FAST)
        b1 = b1 * scale + _noise_bound(w1, FAST)
        b2 = b2 * scale + _noise_bound(w2, FAST)
        b3 = b3 * scale + _noise_bound(w3, FAST)
    return b0, b1, b2, b3


@triton.jit
def top_of(b0, b1, b2, b3):
    """The largest of four blocks."""
    return tl.max(tl.maximum(tl.maximum(b0, b1), tl.maximum(b2, b3)), 0)


@triton.jit
def take(b0, b1, b2, b3, tokens, bound, vocab_size):
    """(lowest token of this bound, the four blocks without it); lane 0 holds `tokens`."""
    f0 = tl.where(b0 == bound, tokens, vocab_size)
    f1 = tl.where(b1 == bound, tokens + 1, vocab_size)
    f2 = tl.where(b2 == bound, tokens + 2, vocab_size)
    f3 = tl.where(b3 == bound, tokens + 3, vocab_size)
    token = tl.min(tl.minimum(tl.minimum(f0, f1), tl.minimum(f2, f3)), 0)
    b0 = tl.where(tokens == token, float("-inf"), b0)
    b1 = tl.where(tokens + 1 == token, float("-inf"), b1)
    b2 = tl.where(tokens + 2 == token, float("-inf"), b2)
    b3 = tl.where(tokens + 3 == token, float("-inf"), b3)
    return token, b0, b1, b2, b3
