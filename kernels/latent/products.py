"""Triton kernels beside the attention of single rows: what is cached, and products of each head by
a matrix of its own.

Owns what one program does; `device.py` launches it.
"""

import triton
import triton.language as tl

from kernels.attention.device import to_cache


@triton.jit
def _write_row(
    row, rows_ptr, norm_ptr, cos_sin_ptr, cache_ptr, positions_ptr, table_rows_ptr, tables_ptr,
    table_width, row_stride, eps, RANK: tl.constexpr, TURNED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, RANK_PAD: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One row's latent, normed, and its key, turned, to their slot; see `write_kernel`."""
    position = tl.load(positions_ptr + row)
    if position >= 0:
        table = tl.load(table_rows_ptr + row).to(tl.int64) * table_width
        block = tl.load(tables_ptr + table + position // BLOCK_SIZE).to(tl.int64)
        out = cache_ptr + (block * BLOCK_SIZE + position % BLOCK_SIZE) * (RANK + TURNED)
        rows_ptr += row.to(tl.int64) * row_stride
        dtype = rows_ptr.dtype.element_ty
        cached = cache_ptr.dtype.element_ty
        columns = tl.arange(0, RANK_PAD)
        there = columns < RANK
        latent = tl.load(rows_ptr + columns, mask=there, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(latent * latent, 0) / RANK + eps)
        weight = tl.load(norm_ptr + columns, mask=there, other=0.0).to(tl.float32)
        latent = ((latent * scale).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
        tl.store(out + columns, to_cache(latent, cached), mask=there)
        pairs = tl.arange(0, HALF)
        inside = pairs < TURNED // 2
        at = rows_ptr + RANK + pairs
        first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(at + TURNED // 2, mask=inside, other=0.0).to(tl.float32)
        angles = cos_sin_ptr + position.to(tl.int64) * TURNED
        cos = tl.load(angles + pairs, mask=inside, other=0.0)
        sin = tl.load(angles + TURNED // 2 + pairs, mask=inside, other=0.0)
        low = (first * cos - second * sin).to(dtype).to(tl.float32)
        high = (second * cos + first * sin).to(dtype).to(tl.float32)
        out += RANK
        tl.store(out + pairs, to_cache(low, cached), mask=inside)
        tl.store(out + TURNED // 2 + pairs, to_cache(high, cached), mask=inside)


@triton.jit(do_not_specialize=["table_width", "row_stride"])
def write_kernel(
    rows_ptr,  # [T, row_stride], latents and the keys that turn
    norm_ptr,  # [RANK], weights of the latents' norm
    cos_sin_ptr,  # float32 [positions, TURNED], cosines, then sines
    cache_ptr,  # [blocks, BLOCK_SIZE, RANK + TURNED]
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width]
    table_width,  # numbers from table to table
    row_stride,  # numbers from row to row
    eps,  # epsilon of the norm
    RANK: tl.constexpr,  # numbers of a latent
    TURNED: tl.constexpr,  # numbers of a key that turn
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    HALF: tl.constexpr,  # the power of two from TURNED / 2 on
):
    """One row's latent, normed, and its key, turned, to their slot."""
    _write_row(
        tl.program_id(0), rows_ptr, norm_ptr, cos_sin_ptr, cache_ptr, positions_ptr,
        table_rows_ptr, tables_ptr, table_width, row_stride, eps, RANK, TURNED, BLOCK_SIZE,
        RANK_PAD, HALF,
    )  # fmt: skip


@triton.jit
def _product_tile(
    x_ptr, weight_ptr, out_ptr, num_rows, row_stride, head_stride, column_tile, head, row_tile,
    H: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, DEPTH_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows of one head by its matrix; see `product_kernel`."""
    dtype = out_ptr.dtype.element_ty
    rows = row_tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns, steps = column_tile * TILE + tl.arange(0, TILE), tl.arange(0, TILE)
    x_ptr += head * head_stride
    weight_ptr += head.to(tl.int64) * DEPTH * COLUMNS
    weights = ()
    if AHEAD:
        for first in tl.static_range(0, DEPTH, TILE):
            weights += (  # type: ignore[assignment]
                _weight_tile(
                    weight_ptr, first + steps, columns, DEPTH, COLUMNS, DEPTH_STRIDE, COLUMN_STRIDE
                ),
            )
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    sums = tl.zeros([ROWS, TILE], tl.float32)
    if AHEAD:
        for first in tl.static_range(0, DEPTH, TILE):
            x = _x_tile(x_ptr, rows, first + steps, num_rows, row_stride, DEPTH).to(DOT)
            sums = tl.dot(x, weights[first // TILE].to(DOT), sums, input_precision="ieee")
    else:
        for first in range(0, DEPTH, TILE):
            x = _x_tile(x_ptr, rows, first + steps, num_rows, row_stride, DEPTH).to(DOT)
            weight = _weight_tile(
                weight_ptr, first + steps, columns, DEPTH, COLUMNS, DEPTH_STRIDE, COLUMN_STRIDE
            )
            sums = tl.dot(x, weight.to(DOT), sums, input_precision="ieee")
    place = out_ptr + (rows[:, None] * H + head) * COLUMNS + columns[None, :]
    shown = (rows < num_rows)[:, None] & (columns < COLUMNS)[None, :]
    tl.store(place, sums.to(dtype), mask=shown)


@triton.jit
def _x_tile(x_ptr, rows, depth, num_rows, row_stride, DEPTH: tl.constexpr):
    """Columns `depth` of some rows of x, 0 where there are none."""
    shown = (rows < num_rows)[:, None] & (depth < DEPTH)[None, :]
    return tl.load(x_ptr + rows[:, None] * row_stride + depth[None, :], mask=shown, other=0.0)


@triton.jit
def _weight_tile(
    weight_ptr, depth, columns, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH_STRIDE: tl.constexpr, COLUMN_STRIDE: tl.constexpr,
):  # fmt: skip
    """Part of a head's matrix, 0 where it ends."""
    at = depth[:, None] * DEPTH_STRIDE + columns[None, :] * COLUMN_STRIDE
    shown = (depth < DEPTH)[:, None] & (columns < COLUMNS)[None, :]
    return tl.load(weight_ptr + at, mask=shown, other=0.0)


@triton.jit(do_not_specialize=["num_rows"])
def product_kernel(
    x_ptr,  # rows of x by head: DEPTH numbers side by side
    weight_ptr,  # [H, DEPTH, COLUMNS], strides as below
    out_ptr,  # [rows, H, COLUMNS]
    num_rows,  # rows
    ROW_STRIDE: tl.constexpr,  # numbers of x from row to row
    HEAD_STRIDE: tl.constexpr,  # numbers of x from head to head
    H: tl.constexpr,  # heads
    DEPTH: tl.constexpr,  # rows of a head's matrix
    COLUMNS: tl.constexpr,  # columns of a head's matrix
    DEPTH_STRIDE: tl.constexpr,  # numbers of the weight from row to row
    COLUMN_STRIDE: tl.constexpr,  # numbers of the weight from column to column
    ROWS: tl.constexpr,  # rows at once
    TILE: tl.constexpr,  # columns, and depth, at once
    DOT: tl.constexpr,  # dtype of products
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (tile of columns, head, tile of rows): rows of one head by its matrix. Sums are added
    up in the same order for any number of rows.
    """
    _product_tile(
        x_ptr, weight_ptr, out_ptr, num_rows, ROW_STRIDE, HEAD_STRIDE, tl.program_id(0),
        tl.program_id(1), tl.program_id(2), H, DEPTH, COLUMNS, DEPTH_STRIDE, COLUMN_STRIDE, ROWS,
        TILE, False, DOT, PDL,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "rows_stride", "table_width"])
def absorb_kernel(
    queries_ptr,  # [num_rows, H, PLAIN + TURNED]
    key_up_ptr,  # [H, PLAIN, RANK]
    seen_ptr,  # out: [num_rows, H, RANK], queries as latents see them
    rows_ptr,  # [num_rows, rows_stride], latents and the keys that turn
    norm_ptr,  # [RANK], weights of the latents' norm
    cos_sin_ptr,  # float32 [positions, TURNED], cosines, then sines
    cache_ptr,  # [blocks, BLOCK_SIZE, RANK + TURNED], where each row's slot is written
    positions_ptr,  # int32 [num_rows]
    table_rows_ptr,  # int32 [num_rows], the table of each row
    tables_ptr,  # int32 [tables, table_width]
    num_rows,
    rows_stride,  # numbers from row to row
    table_width,  # numbers from table to table
    eps,  # epsilon of the norm
    H: tl.constexpr,  # heads
    PLAIN: tl.constexpr,  # numbers of a query that do not turn
    RANK: tl.constexpr,  # numbers of a latent
    TURNED: tl.constexpr,  # numbers of a key that turn
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    HALF: tl.constexpr,  # the power of two from TURNED / 2 on
    ROWS: tl.constexpr,  # rows at once
    TILE: tl.constexpr,  # columns, and depth, at once
    AHEAD: tl.constexpr,  # whether a program's weights are read ahead of the wait
    DOT: tl.constexpr,  # dtype of products
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (tile of latents' numbers, head, tile of rows): the queries of these. Programs after
    those of the last tile write the cached keys and latents, each for some rows.
    """
    head, tile = tl.program_id(1), tl.program_id(2)
    if tl.program_id(0) < tl.num_programs(0) - 1:
        _product_tile(
            queries_ptr, key_up_ptr, seen_ptr, num_rows, H * (PLAIN + TURNED), PLAIN + TURNED,
            tl.program_id(0), head, tile, H, PLAIN, RANK, RANK, 1, ROWS, TILE, AHEAD, DOT, PDL,
        )  # fmt: skip
    else:
        if PDL:
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        row = tile * H + head
        while row < num_rows:
            _write_row(
                row, rows_ptr, norm_ptr, cos_sin_ptr, cache_ptr, positions_ptr, table_rows_ptr,
                tables_ptr, table_width, rows_stride, eps, RANK, TURNED, BLOCK_SIZE, RANK_PAD,
                HALF,
            )  # fmt: skip
            row += H * tl.num_programs(2)
