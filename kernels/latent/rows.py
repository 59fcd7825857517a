"""Triton kernels that attend to cached latents for single rows, and that merge rows which were cut.

Owns what one program does; `device.py` launches it. A program serves some heads of one row over a
part of its cached tokens: a latent is read once for all of them, as key and as value. It turns its
queries by itself. Tokens are the rows of its products and heads the columns, because tensor cores
take 64 rows at once, and columns by eight: so each latent goes to them once, and few heads leave
few places empty.
"""

import triton
import triton.language as tl


@triton.jit
def _cached(ptr, slots, valid, columns, inside, WIDTH: tl.constexpr, DOT: tl.constexpr):
    """[TILE, columns] of cached rows; what is not valid is never read: it may be NaN.

    Triton 3.6.0 takes rows of consecutive slots for multiples of 16 numbers, whatever WIDTH is, and
    copies by 16 bytes: "misaligned address" on an H200 for rows of 184 bytes. The hint says which
    multiple a row really is.
    """
    at = tl.multiple_of(slots[:, None] * WIDTH, (1, WIDTH & -WIDTH)) + columns[None, :]
    return tl.load(ptr + at, mask=valid[:, None] & inside[None, :], other=0.0).to(DOT)


@triton.jit
def _turned(at, angles, pairs, own, inside, TURNED: tl.constexpr):
    """Both halves of the turned part of some heads' queries, rounded as the rows are."""
    both = own[:, None] & inside[None, :]
    own_low = tl.load(at, mask=both, other=0.0)
    own_high = tl.load(at + TURNED // 2, mask=both, other=0.0)
    first, second = own_low.to(tl.float32), own_high.to(tl.float32)
    cos = tl.load(angles + pairs, mask=inside, other=0.0)[None, :]
    sin = tl.load(angles + TURNED // 2 + pairs, mask=inside, other=0.0)[None, :]
    low = (first * cos - second * sin).to(own_low.dtype)
    return low, (second * cos + first * sin).to(own_low.dtype)


@triton.jit
def _share_of(count, PARTS: tl.constexpr, TILE: tl.constexpr):
    """Tokens of a part of a row that sees `count`, whole tiles."""
    return tl.cdiv(tl.cdiv(count, PARTS), TILE) * TILE


@triton.jit(do_not_specialize=["table_width"])
def rows_kernel(
    seen_ptr,  # [T, H, RANK], queries as latents see them
    queries_ptr,  # [T, H, PLAIN + TURNED]
    cos_sin_ptr,  # float32 [positions, TURNED], cosines, then sines
    cache_ptr,  # [blocks, BLOCK_SIZE, RANK + TURNED]
    positions_ptr,  # int32 [T]
    table_rows_ptr,  # int32 [T], the table of each row
    tables_ptr,  # int32 [tables, table_width]
    out_ptr,  # [T, H, RANK]
    partial_ptr,  # float32 [T, parts, H, RANK], results of parts
    lse_ptr,  # float32 [T, parts, H], their log of the sum, of base 2
    table_width,  # numbers from table to table
    scale,  # scale of the scores, in powers of two
    H: tl.constexpr,  # heads
    PLAIN: tl.constexpr,  # numbers of a query that do not turn
    RANK: tl.constexpr,  # numbers of a latent
    TURNED: tl.constexpr,  # numbers of a key that turn
    BLOCK_SIZE: tl.constexpr,  # tokens of a block
    HEADS: tl.constexpr,  # heads of a program
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    HALF: tl.constexpr,  # the power of two from TURNED / 2 on
    TILE: tl.constexpr,  # tokens at once
    PARTS: tl.constexpr,  # parts of a row
    PIECE: tl.constexpr,  # tokens of a part; 0: as many as make PARTS
    DOT: tl.constexpr,  # dtype of products
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (part of the cached tokens, block of heads, row). Scores are powers of two. Parts are
    as long as `PIECE`, 0: as long as makes `PARTS` of them. A part without tokens writes nothing.
    """
    part, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if position < 0:
        return
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    own, columns, pairs = heads < H, tl.arange(0, RANK_PAD), tl.arange(0, HALF)
    there, inside = columns < RANK, pairs < TURNED // 2
    count = position + 1
    share = PIECE if PIECE > 0 else _share_of(count, PARTS, TILE)
    if part * share >= count:
        return
    begin, end = part * share, tl.minimum((part + 1) * share, count)
    seen = tl.load(
        seen_ptr + (row * H + heads)[None, :] * RANK + columns[:, None],
        mask=own[None, :] & there[:, None], other=0.0,
    ).to(DOT)  # fmt: skip
    at = queries_ptr + (row * H + heads)[:, None] * (PLAIN + TURNED) + PLAIN + pairs[None, :]
    angles = cos_sin_ptr + position.to(tl.int64) * TURNED
    low, high = _turned(at, angles, pairs, own, inside, TURNED)
    low, high = tl.trans(low.to(DOT)), tl.trans(high.to(DOT))
    top = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([RANK_PAD, HEADS], tl.float32)
    table_ptr = tables_ptr + tl.load(table_rows_ptr + row).to(tl.int64) * table_width
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        valid = tokens < end
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + tokens % BLOCK_SIZE
        latents = _cached(cache_ptr, slots, valid, columns, there, RANK + TURNED, DOT)
        k_low = _cached(cache_ptr + RANK, slots, valid, pairs, inside, RANK + TURNED, DOT)
        k_high = _cached(
            cache_ptr + RANK + TURNED // 2, slots, valid, pairs, inside, RANK + TURNED, DOT
        )
        scores = tl.dot(latents, seen, input_precision="ieee")
        scores = tl.dot(k_low, low, scores, input_precision="ieee")
        scores = tl.dot(k_high, high, scores, input_precision="ieee") * scale
        scores = tl.where(valid[:, None], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp2(scores - new_top[None, :])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weights, 0)
        mixed = tl.dot(
            tl.trans(latents), weights.to(DOT), mixed * fade[None, :], input_precision="ieee"
        )
        top = new_top
    whole = own[None, :] & there[:, None]
    if PARTS == 1 and not PIECE:
        place = out_ptr + (row * H + heads)[None, :] * RANK + columns[:, None]
        tl.store(place, (mixed / total[None, :]).to(out_ptr.dtype.element_ty), mask=whole)
    else:
        slot = (row * tl.num_programs(0) + part) * H + heads
        result = mixed / total[None, :]
        tl.store(partial_ptr + slot[None, :] * RANK + columns[:, None], result, mask=whole)
        tl.store(lse_ptr + slot, top + tl.log2(total), mask=own)


@triton.jit
def _merged(
    partial_ptr, lse_ptr, row, head, position, H: tl.constexpr, RANK: tl.constexpr,
    RANK_PAD: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The attention of one head of one row over the latents, float32 [RANK_PAD]: the parts that
    have tokens, merged always in the same order.
    """
    num_parts = tl.cdiv(position + 1, _share_of(position + 1, PARTS, TILE))
    parts, columns = tl.arange(0, PARTS), tl.arange(0, RANK_PAD)
    slots = row * PARTS * H + head
    lse = tl.load(lse_ptr + slots + parts * H, mask=parts < num_parts, other=-float("inf"))
    top = tl.max(lse, 0)
    total = tl.sum(tl.exp2(lse - top), 0)
    whole = tl.zeros([RANK_PAD], tl.float32)
    for first in range(0, num_parts, AT_ONCE):
        own = first + tl.arange(0, AT_ONCE)
        shown = own < num_parts
        places = slots + own * H
        weights = tl.exp2(tl.load(lse_ptr + places, mask=shown, other=-float("inf")) - top)
        found = tl.load(
            partial_ptr + places[:, None] * RANK + columns[None, :],
            mask=shown[:, None] & (columns < RANK)[None, :], other=0.0,
        )  # fmt: skip
        whole += tl.sum(weights[:, None] * found, 0)
    return whole / total


@triton.jit
def merge_kernel(
    partial_ptr,  # float32 [T, PARTS, H, RANK], results of parts
    lse_ptr,  # float32 [T, PARTS, H], their log of the sum, of base 2
    positions_ptr,  # int32 [T]
    out_ptr,  # [T, H, RANK]
    H: tl.constexpr,  # heads
    RANK: tl.constexpr,  # numbers of a latent
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    PARTS: tl.constexpr,  # parts of a row
    TILE: tl.constexpr,  # tokens at once, of `rows_kernel`
    AT_ONCE: tl.constexpr,  # parts that are read at once
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One head of one row."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if position < 0:
        return
    whole = _merged(
        partial_ptr, lse_ptr, row, head, position, H, RANK, RANK_PAD, PARTS, TILE, AT_ONCE
    )
    columns = tl.arange(0, RANK_PAD)
    place = out_ptr + (row * H + head) * RANK + columns
    tl.store(place, whole.to(out_ptr.dtype.element_ty), mask=columns < RANK)


@triton.jit
def merge_values_kernel(
    partial_ptr,  # float32 [T, PARTS, H, RANK], results of parts
    lse_ptr,  # float32 [T, PARTS, H], their log of the sum, of base 2
    positions_ptr,  # int32 [T]
    value_up_ptr,  # [H, VALUE, RANK]
    out_ptr,  # [T, H, VALUE]
    H: tl.constexpr,  # heads
    RANK: tl.constexpr,  # numbers of a latent
    VALUE: tl.constexpr,  # numbers of a value
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    PARTS: tl.constexpr,  # parts of a row
    TILE: tl.constexpr,  # tokens at once, of `rows_kernel`
    AT_ONCE: tl.constexpr,  # parts that are read at once
    VALUES: tl.constexpr,  # numbers of a value in a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (tile of a value, head, row): the row's parts, and values of the whole. Each program
    merges anew: 2 KB a part, where its weights are 32.
    """
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    position = tl.load(positions_ptr + row)
    values, columns = tl.program_id(0) * VALUES + tl.arange(0, VALUES), tl.arange(0, RANK_PAD)
    at = (head.to(tl.int64) * VALUE + values)[:, None] * RANK + columns[None, :]
    shown = (values < VALUE)[:, None] & (columns < RANK)[None, :]
    weight = tl.load(value_up_ptr + at, mask=shown, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if position < 0:
        return
    whole = _merged(
        partial_ptr, lse_ptr, row, head, position, H, RANK, RANK_PAD, PARTS, TILE, AT_ONCE
    )
    made = tl.sum(weight.to(tl.float32) * whole[None, :], 1)
    place = out_ptr + (row * H + head) * VALUE + values
    tl.store(place, made.to(out_ptr.dtype.element_ty), mask=values < VALUE)


@triton.jit(do_not_specialize=["num_parts"])
def merge_pieces_kernel(
    partial_ptr,  # float32 [T, parts, H, RANK], results of parts
    lse_ptr,  # float32 [T, parts, H], their log of the sum, of base 2
    positions_ptr,  # int32 [T]
    out_ptr,  # [T, H, RANK]
    num_parts,  # the most parts of a row
    H: tl.constexpr,  # heads
    RANK: tl.constexpr,  # numbers of a latent
    RANK_PAD: tl.constexpr,  # the power of two from RANK on
    PIECE: tl.constexpr,  # tokens of a part; 0: as many as make PARTS
):
    """Like `merge_kernel`, where the row's position gives the number of parts."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if position < 0:
        return
    columns = tl.arange(0, RANK_PAD)
    count = position // PIECE + 1
    slots = row * num_parts * H + head
    top = tl.load(lse_ptr + slots)
    for part in range(1, count):
        top = tl.maximum(top, tl.load(lse_ptr + slots + part * H))
    whole = tl.zeros([RANK_PAD], tl.float32)
    total = 0.0
    for part in range(count):
        slot = slots + part * H
        weight = tl.exp2(tl.load(lse_ptr + slot) - top)
        found = tl.load(partial_ptr + slot * RANK + columns, mask=columns < RANK, other=0.0)
        whole += weight * found
        total += weight
    place = out_ptr + (row * H + head) * RANK + columns
    tl.store(place, (whole / total).to(out_ptr.dtype.element_ty), mask=columns < RANK)
