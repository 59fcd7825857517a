"""How Triton's products read a weight in 16, 8 or 4 bits: one kernel each for all formats.

Owns which tensors and constants a format has, and its loaders. A kernel of `gemv` or `skinny` goes
through the stored elements of a weight's rows; a loader makes what it adds to its sums of them. An
element is a number in 16 or 8 bits, or a word of eight in 4 bits. Must not know how a product is
cut up.

The two kernels have loaders of their own. On ordinary lanes a program holds all its weights at
once, and multiplies float32; tensor cores take tiles that come through shared memory, in x's dtype.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8 import BLOCK, Fp8Weight
from kernels.int4 import PER_WORD, Int4Weight
from kernels.int4.kernel import column_of, plane_of, scales_of


class WeightForm(NamedTuple):
    """The properties of a weight for which a kernel is compiled. `scale_block`: 0 without scales or
    in 4 bits, 1 with scales by row, more with scales by block of this many rows and columns.
    `group`: columns that share a scale in 4 bits, else 0; `has_zeros`: and a zero point.
    `item_bytes` of an element.
    """

    scale_block: int
    group: int
    has_zeros: bool
    item_bytes: int

    @property
    def per(self) -> int:
        """Numbers of an element."""
        return PER_WORD if self.group else 1

    def constants(self) -> dict[str, int]:
        """The constants by the names that they have in both kernels."""
        return {"SCALE_BLOCK": self.scale_block, "GROUP": self.group, "ZEROS": self.has_zeros}


_DENSE: Final = {size: WeightForm(0, 0, False, size) for size in (2, 4)}
"""The loaders of weights in 16 and 32 bits, by the bytes of a number."""

_FP8: Final = {scale_block: WeightForm(scale_block, 0, False, 1) for scale_block in (1, BLOCK)}
"""The loaders of weights in 8 bits, by `scale_block`."""


def parts_for(
    weight: Tensor | Fp8Weight | Int4Weight,
) -> tuple[WeightForm, Tensor, Tensor | None, Tensor | None]:
    """What a kernel reads of a weight whose columns are x's: its form, elements [N, K / per],
    scales, and zero points. Runs at every launch.
    """
    if isinstance(weight, Tensor):
        return _DENSE[weight.itemsize], weight, None, None
    if isinstance(weight, Fp8Weight):
        form = _FP8[BLOCK if weight.is_blocked else 1]
        return form, weight.values, weight.scales, None
    words, zeros = weight.words, weight.zeros
    form = WeightForm(0, weight.group, zeros is not None, words.itemsize)
    return form, words, weight.scales, zeros


@triton.jit
def numbers_held(
    weight_ptrs,  # [BLOCK_N, BLOCK_K], where the chunk lies
    scale_ptr,  # float32, by block
    norm_ptr,  # [K], weights of the norm
    columns,  # [BLOCK_K], of the chunk
    tile,  # number of the program's tile of weight rows
    num_out,  # columns of the result
    END: tl.constexpr,  # first column behind the chunk
    K: tl.constexpr,  # depth: columns of x and of the weight
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    SCALE_BLOCK: tl.constexpr,  # as in `WeightForm`
    NORM: tl.constexpr,  # whether x is normed
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
):
    """`gemv`: a chunk of numbers; weights of its norm and scales by block, or 0."""
    numbers = _chunk(weight_ptrs, columns[None, :], 0.0, END, K)
    norms, scales = 0.0, 0.0  # Triton 3.6 returns no None within a tuple
    if NORM:
        norms = _chunk(norm_ptr + columns, columns, 0.0, END, K)
    if SCALE_BLOCK > 1:
        scales = _blocks_along(scale_ptr, tile, columns, num_out, K, BLOCK_N, SCALE_BLOCK, SWIGLU)
    return numbers, norms, scales


@triton.jit
def x_held(x_ptr, START: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """`gemv`: the columns of a chunk of a row of x."""
    lanes = tl.arange(0, BLOCK_K)
    return tl.load(x_ptr + START + lanes, START + lanes < K, 0.0)


@triton.jit
def numbers_added(
    products,  # float32 [BLOCK_N, BLOCK_K / 8], sums so far
    squares,  # float32 [BLOCK_K], of x
    held,  # what `numbers_held` has returned
    x,  # [BLOCK_K], the chunk's of a row of x
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_K: tl.constexpr,  # columns at once
    SCALE_BLOCK: tl.constexpr,  # as in `WeightForm`
    NORM: tl.constexpr,  # whether x is normed
):
    """`gemv`: the products of a chunk and a row of x, added to those so far."""
    x = x.to(tl.float32)
    if NORM:
        squares += x * x
        x *= held[1].to(tl.float32)
    # One thread holds eight neighbours, so their sum needs no exchange between threads.
    x = x[None, :]
    if SCALE_BLOCK > 1:
        x = x * held[2]
    product = held[0].to(tl.float32) * x
    products += tl.sum(product.reshape(BLOCK_N, BLOCK_K // 8, 8), 2)
    return products, squares


@triton.jit
def _chunk(ptrs, columns, nothing, END: tl.constexpr, WIDTH: tl.constexpr):
    """Elements up to END, or WIDTH, behind it `nothing`. They are read once: they leave the cache
    first.
    """
    if END <= WIDTH:
        return tl.load(ptrs, eviction_policy="evict_first")
    return tl.load(ptrs, columns < WIDTH, nothing, eviction_policy="evict_first")


@triton.jit
def _blocks_along(
    scale_ptr, tile, columns, num_out,
    K: tl.constexpr, BLOCK_N: tl.constexpr, SCALE_BLOCK: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """The scales of the weights in `columns`, [1 or BLOCK_N, columns]. A program's rows are within
    one block; with SWIGLU its rows are alternately in a block of the gates and in a block of the
    ups.
    """
    at = tl.minimum(columns, K - 1) // SCALE_BLOCK
    width: tl.constexpr = (K + SCALE_BLOCK - 1) // SCALE_BLOCK
    if SWIGLU:
        block = tile * (BLOCK_N // 2) // SCALE_BLOCK
        gate = tl.load(scale_ptr + block * width + at)
        up = tl.load(scale_ptr + (block + num_out // SCALE_BLOCK) * width + at)
        is_up = tl.arange(0, BLOCK_N) % 2 == 1
        return tl.where(is_up[:, None], up[None, :], gate[None, :])
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.load(scale_ptr + tile * BLOCK_N // SCALE_BLOCK * width + at)[None, :]


@triton.jit
def words_held(
    weight_ptr,  # int32 [weight rows, K / 8]
    scale_ptr,  # [weight rows, K / GROUP]
    zero_ptr,  # uint8 [weight rows, K / GROUP], zero points
    rows,  # [BLOCK_N], weight rows of the program
    START: tl.constexpr,  # first word of the chunk
    K: tl.constexpr,  # depth: columns of x and of the weight
    BLOCK_W: tl.constexpr,  # words at once
    GROUP: tl.constexpr,  # columns of a group
    ZEROS: tl.constexpr,  # whether groups have zero points
):
    """`gemv`: a chunk of words, and what their sums are multiplied with, as `scales_of` says."""
    num_words: tl.constexpr = K // 8
    per: tl.constexpr = GROUP // 8
    lanes = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_W), 4), 4)
    at, rows = (START + lanes)[None, :], rows[:, None]
    words = _chunk(weight_ptr + rows * num_words + at, at, 0, START + BLOCK_W, num_words)
    scale_at = rows * (K // GROUP) + at // per
    factor, offset = scales_of(scale_ptr, zero_ptr, scale_at, at < num_words, ZEROS)
    return words, factor, offset


@triton.jit
def words_added(
    products,  # float32 [BLOCK_N, BLOCK_W], sums so far
    squares,  # float32 [BLOCK_W], of x
    held,  # what `words_held` has returned
    x_ptr,  # [K], a row of x
    norm_ptr,  # [K], weights of the norm
    START: tl.constexpr,  # first word of the chunk
    K: tl.constexpr,  # depth: columns of x and of the weight
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_W: tl.constexpr,  # words at once
    NORM: tl.constexpr,  # whether x is normed
):
    """`gemv`: the products of a chunk and a row of x, added to those so far.

    A number takes a shift, an operation on bits and a multiply-add; its group's scale and zero
    point are applied to the sum of eight numbers, once per word: sum((q - z) s x) =
    16 s (sum(v x) - (1 + z / 16) sum(x)) with v = 1 + q / 16.
    """
    at = START + tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_W), 4), 4)
    inside, columns = at < K // 8, at // 4 * 32 + at % 4 * 2
    sums = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
    total = tl.zeros([BLOCK_W], tl.float32)
    for plane in tl.static_range(8):
        x = tl.load(x_ptr + columns + column_of(plane), inside, 0.0)
        x = x.to(tl.float32)
        if NORM:
            squares += x * x
            norms = tl.load(norm_ptr + columns + column_of(plane), inside, 0.0)
            x *= norms.to(tl.float32)
        sums += plane_of(held[0], plane) * x[None, :]
        total += x
    products += sums * held[1]
    products -= total[None, :] * held[2]
    return products, squares


@triton.jit
def numbers_multiplied(
    sums,  # float32 [BLOCK_N, ROWS], so far
    squares,  # float32 [ROWS], of x
    weight_ptrs,  # [BLOCK_N, BLOCK_K], where the tile lies
    x_ptrs,  # [ROWS, BLOCK_K], where its columns of x lie
    norm_ptr,  # [depth], weights of the norm
    scale_ptr,  # float32, by block
    tile,  # number of the program's tile of weight rows
    column,  # first one of the tile
    num_out,  # columns of the result
    depth,  # columns of x and of the weight
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_K: tl.constexpr,  # columns at once
    EVEN_K: tl.constexpr,  # whether BLOCK_K divides depth
    SCALE_BLOCK: tl.constexpr,  # as in `WeightForm`
    NORM: tl.constexpr,  # whether x is normed
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    WEIGHTS_EVICTED: tl.constexpr,  # which weights leave the cache first
):
    """`skinny`: the products of a tile of numbers and rows of x, added to `sums`."""
    lanes = tl.arange(0, BLOCK_K)
    if EVEN_K:
        weights = tl.load(weight_ptrs, eviction_policy=WEIGHTS_EVICTED)
        x = tl.load(x_ptrs, eviction_policy="evict_last")
    else:
        inside = (column + lanes < depth)[None, :]
        weights = tl.load(weight_ptrs, inside, 0.0, eviction_policy=WEIGHTS_EVICTED)
        x = tl.load(x_ptrs, inside, 0.0, eviction_policy="evict_last")
    if weights.dtype != x.dtype:
        # By way of float32: straight to bfloat16 a weight is one of 16 per clock and SM.
        weights = weights.to(tl.float32).to(x.dtype)
    if NORM:
        norm = tl.load(norm_ptr + column + lanes, column + lanes < depth, 0.0)
        wide = x.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        x = (wide * norm.to(tl.float32)[None, :]).to(weights.dtype)
    if SCALE_BLOCK > 1:
        scales = _block_of(scale_ptr, tile, column, num_out, depth, BLOCK_N, SCALE_BLOCK, SWIGLU)
        sums += tl.dot(weights, x.T, input_precision="ieee") * scales
    else:
        sums = tl.dot(weights, x.T, sums, input_precision="ieee")
    return sums, squares


@triton.jit
def _block_of(
    scale_ptr, tile, column, num_out, depth,
    BLOCK_N: tl.constexpr, SCALE_BLOCK: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """The scales of a tile of weights from `column` on, [BLOCK_N, 1]. The tile is within one block;
    with SWIGLU its rows are alternately in a block of the gates and in a block of the ups.
    """
    width = tl.cdiv(depth, SCALE_BLOCK)
    scale_ptr += column // SCALE_BLOCK
    if SWIGLU:
        block = tile * (BLOCK_N // 2) // SCALE_BLOCK
        gate = tl.load(scale_ptr + block * width)
        up = tl.load(scale_ptr + (block + num_out // SCALE_BLOCK) * width)
        return tl.where(tl.arange(0, BLOCK_N) % 2 == 1, up, gate)[:, None]
    else:  # noqa: RET505 - what follows a return is compiled all the same
        scale = tl.load(scale_ptr + tile * BLOCK_N // SCALE_BLOCK * width)
        return tl.full([BLOCK_N, 1], 1.0, tl.float32) * scale


@triton.jit
def words_multiplied(
    sums,  # float32 [BLOCK_N, ROWS], so far
    weight_ptr,  # int32 [weight rows, depth / 8]
    scale_ptr,  # [weight rows, depth / GROUP]
    zero_ptr,  # uint8 [weight rows, depth / GROUP], zero points
    x_ptr,  # [T, depth], rows of x
    weights_at,  # [BLOCK_N], weight rows of the tile
    rows,  # [ROWS], rows of x
    start,  # first word of the tile
    depth,  # columns of x and of the weight
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_W: tl.constexpr,  # words at once
    EVEN: tl.constexpr,  # whether BLOCK_W divides the words
    GROUP: tl.constexpr,  # columns of a group
    ZEROS: tl.constexpr,  # whether groups have zero points
):
    """`skinny`: the products of a tile of words and rows of x, added to `sums`.

    Each two of the words' eight planes become a tile of weights in x's dtype, in registers, rounded
    once as a widened weight is, and meet their own columns of x, eight side by side.
    """
    num_words = depth // 8
    pairs = tl.arange(0, 2 * BLOCK_W)
    at, weights_at, rows = (
        (start + tl.arange(0, BLOCK_W))[None, :],
        weights_at[:, None],
        rows[:, None],
    )
    # Where tiles are even a mask that is true everywhere costs nothing.
    inside = at < (2147483647 if EVEN else num_words)
    words = tl.load(weight_ptr + weights_at * num_words + at, inside, 0)
    scale_at = weights_at * (num_words // (GROUP // 8)) + at // (GROUP // 8)
    factor, offset = scales_of(scale_ptr, zero_ptr, scale_at, inside, ZEROS)
    columns = (start * 8 + pairs // 8 * 32 + pairs % 8)[None, :]
    for plane in tl.static_range(4):
        at_plane = columns + 8 * plane
        x = tl.load(
            x_ptr + rows * depth + at_plane, at_plane < (2147483647 if EVEN else depth), 0.0
        )
        low = (plane_of(words, plane) * factor - offset).to(x.dtype)
        high = (plane_of(words, plane + 4) * factor - offset).to(x.dtype)
        weights = tl.join(low, high).reshape(BLOCK_N, 2 * BLOCK_W)
        sums = tl.dot(weights, x.T, sums, input_precision="ieee")
    return sums
