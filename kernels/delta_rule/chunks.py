"""Triton kernels of chunks of 64 rows: each chunk's system by itself, then a scan along a span.

Owns the algebra. With G the running sum of a chunk's gates, D the diagonal, k and q unit rows:

    A[i, j] = beta_i (k_i . k_j) exp(G_i - G_j) below D;  T = (I + A)^-1 diag(beta)
    P[i, j] = (q_i . k_j) exp(G_i - G_j) below D and on it                      `system_kernel`
    u = T (V - diag(exp(G)) K S);  o = diag(exp(G)) Q S + P u
    S = exp(G_last) S + K^T diag(exp(G_last - G)) u                               `scan_kernel`

Every exponent is a difference that is not above 0. All systems are independent. Behind them only
the three products of u and S depend on each other; the scan computes these. It holds S transposed:
then each product's left factor is the result of the one before, in registers, and its right factor
is in memory already, so that threads exchange nothing.

Products take operands in the rows' dtype and add up in float32; the state between chunks is float32
too.

Each kernel of a layer waits for those ahead, then lets the next one start. So what no kernel of the
layer writes (plan, gates, states) may be read ahead of `gdc_wait`.
"""

import triton
import triton.language as tl

from kernels.delta_rule.pieces import log_kept, sigmoid


@triton.jit(do_not_specialize=["num_decodes"])
def system_kernel(
    mixed_ptr,  # [T, C], behind the convolution
    gates_ptr,  # [T, 2 HV], b of each head, then a
    decay_ptr,  # float32 [HV]
    dt_bias_ptr,  # float32 [HV]
    offsets_ptr,  # int32 [S + 1], first row of each span
    chunks_ptr,  # int32 [N, 2], span and number of each chunk
    blocks_ptr,  # float32 [places, CHUNK, SIDE]: room
    solved_ptr,  # [places, CHUNK, CHUNK]: T, by place and head
    scores_ptr,  # [places, CHUNK, CHUNK]: P
    factors_ptr,  # float32 [places, 3, CHUNK]: exp(G), exp(G_last - G), beta
    num_decodes,  # rows, and spans, ahead of the first chunk
    C: tl.constexpr,  # columns of queries, keys and values
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    CHUNK: tl.constexpr,  # rows of a chunk
    BLOCK_K: tl.constexpr,  # the power of two from K on
    SIDE: tl.constexpr,  # rows of a block that is inverted row by row
    PRECISION: tl.constexpr,  # precision of products of float32
    MERGE: tl.constexpr,  # precision of the products that merge inverses
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """By place and head, all rows of a chunk: T and P [CHUNK, CHUNK] in the rows' dtype; factors
    exp(G), exp(G_last - G) and beta, float32 [3, CHUNK]; room for blocks, float32 [CHUNK, SIDE].
    """
    span, head = tl.load(chunks_ptr + 2 * tl.program_id(0)), tl.program_id(1)
    number = tl.load(chunks_ptr + 2 * tl.program_id(0) + 1)
    offset = tl.load(offsets_ptr + tl.maximum(span, 0))
    num_left = tl.load(offsets_ptr + tl.maximum(span, 0) + 1) - offset - number * CHUNK
    if PDL:
        # Also where there is no span: the kernel behind relies on all that ran ahead of this one.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if span >= 0:
        first = (offset + number * CHUNK).to(tl.int64)
        own = (place_of(offset, span - num_decodes, CHUNK) + number) * HV + head
        places, keys = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
        is_row = places < num_left
        inside = is_row[:, None] & (keys < K)[None, :]
        gate_at = gates_ptr + first * 2 * HV + head + places * 2 * HV
        b = tl.load(gate_at, is_row, 0.0).to(tl.float32)
        a = tl.load(gate_at + HV, is_row, 0.0).to(tl.float32)
        query_at = mixed_ptr + first * C + head // (HV // HK) * K
        query_at += places[:, None] * C + keys[None, :]
        k = tl.load(query_at + HK * K, inside, 0.0)
        q = tl.load(query_at, inside, 0.0)
        # Rows behind the last change nothing.
        beta = tl.where(is_row, sigmoid(b), 0.0)
        kept = log_kept(a, tl.load(decay_ptr + head), tl.load(dt_bias_ptr + head))
        # Logarithms of base 2 cost a multiplication less.
        total = tl.cumsum(tl.where(is_row, kept, 0.0), 0) * 1.4426950408889634
        factors_ptr += own * 3 * CHUNK
        tl.store(factors_ptr + places, tl.exp2(total))
        tl.store(factors_ptr + CHUNK + places, tl.exp2(tl.min(total, 0) - total))
        tl.store(factors_ptr + 2 * CHUNK + places, beta)
        is_past = places[:, None] >= places[None, :]
        between = tl.exp2(tl.where(is_past, total[:, None] - total[None, :], float("-inf")))
        system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between * beta[:, None]
        system = tl.where(places[:, None] > places[None, :], system, 0.0)
        block = places // SIDE
        blocks_ptr += own * CHUNK * SIDE
        block_at = blocks_ptr + places[:, None] * SIDE + (places % SIDE)[None, :]
        tl.store(block_at, system, block[:, None] == block[None, :])
        rest = tl.where(block[:, None] == block[None, :], 0.0, system)
        dtype: tl.constexpr = solved_ptr.dtype.element_ty
        out_at = own * CHUNK * CHUNK + places[:, None] * CHUNK + places[None, :]
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * between
        tl.store(scores_ptr + out_at, scores.to(dtype))
        tl.debug_barrier()
        solved = _merged(_inverses(blocks_ptr, CHUNK, SIDE), rest, MERGE)
        # By columns now: to load them is less work than to compute them again in other threads.
        solved *= tl.load(factors_ptr + 2 * CHUNK + places)[None, :]
        tl.store(solved_ptr + out_at, solved.to(dtype))


@triton.jit
def place_of(offset, number, CHUNK: tl.constexpr):
    """The index of the first chunk of span `number`, whose first row is `offset`. The chunks of
    earlier spans come before it, and the last chunk of each of them may be partial.
    """
    return (offset // CHUNK + number).to(tl.int64)


@triton.jit
def _inverses(blocks_ptr, CHUNK: tl.constexpr, SIDE: tl.constexpr):
    """Blocks [CHUNK, SIDE], strictly lower triangular, become the inverses of I + block, on the
    diagonal of [CHUNK, CHUNK]: row by row, all at once.
    """
    num_blocks: tl.constexpr = CHUNK // SIDE
    # A warp has a block: a column is 8 numbers of each of two threads.
    row = 2 * tl.arange(0, SIDE // 2)[:, None, None, None] + tl.arange(0, 2)[None, None, :, None]
    block = tl.arange(0, num_blocks)[None, :, None, None]
    column = tl.arange(0, SIDE)[None, None, None, :]
    at = blocks_ptr + block * SIDE * SIDE + row
    solved = tl.where(row == column, 1.0, 0.0)
    solved += tl.zeros([SIDE // 2, num_blocks, 2, SIDE], tl.float32)
    for step in tl.static_range(1, SIDE):
        sums = tl.sum(tl.sum(tl.load(at + step * SIDE) * solved, 0), 1)
        solved -= tl.where(row == step, sums[None, :, None, :], 0.0)
    solved = tl.reshape(tl.permute(solved, (1, 0, 2, 3)), (num_blocks, SIDE, SIDE))
    one, other = (
        tl.arange(0, num_blocks)[:, None, None, None],
        tl.arange(0, num_blocks)[None, None, :, None],
    )
    return tl.reshape(tl.where(one == other, solved[:, :, None, :], 0.0), (CHUNK, CHUNK))


@triton.jit
def _merged(wide, rest, MERGE: tl.constexpr):
    """(I + A)^-1 of four blocks: `wide` has the inverses of those on the diagonal, `rest` those of
    A below it.

    With M = wide rest, M^4 = 0: it is (I - M) (I + M^2) wide. Doubling from single rows would lose
    digits where keys repeat: powers of ones below a diagonal of 64 grow to C(63, 31), of 4 to 3.
    """
    step = tl.dot(wide, rest, input_precision=MERGE)
    twice = tl.dot(step, step, input_precision=MERGE)
    even = wide + tl.dot(twice, wide, input_precision=MERGE)
    return even - tl.dot(step, even, input_precision=MERGE)


@triton.jit(do_not_specialize=["num_decodes"])
def scan_kernel(
    mixed_ptr,  # [T, C], behind the convolution
    solved_ptr,  # [places, CHUNK, CHUNK]: T, by place and head
    scores_ptr,  # [places, CHUNK, CHUNK]: P
    factors_ptr,  # float32 [places, 3, CHUNK]: exp(G), exp(G_last - G), beta
    state_ptr,  # float32 [slots, HV, K, V]
    starts_ptr,  # int32 [S], position of each span's first row
    slots_ptr,  # int32 [S]
    offsets_ptr,  # int32 [S + 1], first row of each span
    read_ptr,  # [T, HV, V], what is read of the states
    num_decodes,  # rows, and spans, ahead of the first chunk
    C: tl.constexpr,  # columns of queries, keys and values
    STATE: tl.constexpr,  # numbers from slot to slot of the states
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    CHUNK: tl.constexpr,  # rows of a chunk
    BLOCK_K: tl.constexpr,  # the power of two from K on
    BLOCK_V: tl.constexpr,  # values of a program, a power of two
    STAGES: tl.constexpr,  # chunks on their way at once
    PRECISION: tl.constexpr,  # precision of products of float32
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """What is read [T, HV, V], and the states behind; a program has a head and a part of V."""
    number, head = tl.program_id(0), tl.program_id(1)
    span = num_decodes + number
    offset = tl.load(offsets_ptr + span)
    begun_at = tl.load(starts_ptr + span)
    # Rows of a span that is left out have no systems.
    num_rows = tl.where(begun_at < 0, 0, tl.load(offsets_ptr + span + 1) - offset)
    keys, values = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    ahead = tl.program_id(2) * BLOCK_V
    state_at = state_ptr + tl.load(slots_ptr + span).to(tl.int64) * STATE + head * K * V + ahead
    state_at += keys[:, None] * V + values[None, :]
    inside = (keys < K)[:, None] & (ahead + values < V)[None, :] & (num_rows > 0)
    held = tl.trans(tl.load(state_at, inside & (begun_at > 0), 0.0))
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    query_ptr = mixed_ptr + offset.to(tl.int64) * C + head // (HV // HK) * K
    value_ptr = mixed_ptr + offset.to(tl.int64) * C + 2 * HK * K + head * V + ahead
    own = place_of(offset, number, CHUNK) * HV + head
    solved_ptr += own * CHUNK * CHUNK
    scores_ptr += own * CHUNK * CHUNK
    factors_ptr += own * 3 * CHUNK
    read_ptr += offset.to(tl.int64) * HV * V + head * V + ahead
    num_chunks = (num_rows // CHUNK).to(tl.int64)
    for chunk in tl.range(0, num_chunks, num_stages=STAGES):
        held = _scanned(
            held, query_ptr, value_ptr, solved_ptr, scores_ptr, factors_ptr, read_ptr,
            chunk, CHUNK, V - ahead,
            C, HK, HV, K, V, CHUNK, BLOCK_K, BLOCK_V, PRECISION, True,
        )  # fmt: skip
    if num_rows % CHUNK > 0:
        held = _scanned(
            held, query_ptr, value_ptr, solved_ptr, scores_ptr, factors_ptr, read_ptr,
            num_chunks, num_rows % CHUNK, V - ahead,
            C, HK, HV, K, V, CHUNK, BLOCK_K, BLOCK_V, PRECISION, False,
        )  # fmt: skip
    tl.store(state_at, tl.trans(held), inside)


@triton.jit
def _scanned(
    held,  # float32 [BLOCK_V, BLOCK_K], the state ahead, transposed
    query_ptr,  # the head's queries of the span's first row; keys lie HK * K behind
    value_ptr,  # the program's values of that row
    solved_ptr,  # [HV, CHUNK, CHUNK] for each chunk, at this head: T
    scores_ptr,  # like it: P
    factors_ptr,  # float32 [HV, 3, CHUNK] for each chunk: exp(G), exp(G_last - G), beta
    read_ptr,  # the program's part of what is read for the span's first row
    chunk,  # number of the chunk in its span
    num_left,  # rows from its first one on
    num_values,  # values from the program's first one on
    C: tl.constexpr,  # columns of queries, keys and values
    HK: tl.constexpr,  # key heads
    HV: tl.constexpr,  # value heads
    K: tl.constexpr,  # numbers of a key
    V: tl.constexpr,  # numbers of a value
    CHUNK: tl.constexpr,  # rows of a chunk
    BLOCK_K: tl.constexpr,  # the power of two from K on
    BLOCK_V: tl.constexpr,  # values of a program, a power of two
    PRECISION: tl.constexpr,  # precision of products of float32
    WHOLE: tl.constexpr,  # whether the chunk has all its rows
):
    """The state [BLOCK_V, BLOCK_K] behind a chunk of `num_left` rows, all if `WHOLE`."""
    places, keys, values = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    is_row = (places < num_left)[:, None]
    has_key, has_value = is_row & (keys < K)[None, :], is_row & (values < num_values)[None, :]
    key_at = query_ptr + chunk * (CHUNK * C) + places[:, None] * C + keys[None, :]
    value_at = value_ptr + chunk * (CHUNK * C) + places[:, None] * C + values[None, :]
    pair_at = chunk * (HV * CHUNK * CHUNK) + places[:, None] * CHUNK + places[None, :]
    factor_at = factors_ptr + chunk * (HV * 3 * CHUNK)
    k = _loaded(key_at + HK * K, has_key, WHOLE and K == BLOCK_K)
    solved = tl.load(solved_ptr + pair_at)
    v = _loaded(value_at, has_value, WHOLE and V % BLOCK_V == 0)
    q = _loaded(key_at, has_key, WHOLE and K == BLOCK_K)
    scores = tl.load(scores_ptr + pair_at)
    kept = tl.load(factor_at + places)[None, :]
    lasting = tl.load(factor_at + CHUNK + places)[None, :]
    all_kept = tl.load(factor_at + CHUNK - 1)
    dtype: tl.constexpr = read_ptr.dtype.element_ty
    low = held.to(dtype)
    # Two products where one of the difference would do: values stay where they were loaded to.
    update = tl.dot(tl.trans(v), tl.trans(solved), input_precision=PRECISION)
    past = tl.dot(low, tl.trans(k), input_precision=PRECISION) * -kept
    update = tl.dot(past.to(dtype), tl.trans(solved), update, input_precision=PRECISION)
    held = tl.dot((update * lasting).to(dtype), k, held * all_kept, input_precision=PRECISION)
    read = tl.dot(low, tl.trans(q), input_precision=PRECISION) * kept
    read = tl.dot(update.to(dtype), tl.trans(scores), read, input_precision=PRECISION)
    read_at = read_ptr + chunk * (CHUNK * HV * V) + places[:, None] * (HV * V) + values[None, :]
    out = tl.trans(read.to(dtype))
    if WHOLE and V % BLOCK_V == 0:
        tl.store(read_at, out)
    else:
        tl.store(read_at, out, has_value)
    return held


@triton.jit
def _loaded(at, inside, ALL: tl.constexpr):
    """The loaded numbers, 0 where not `inside`. With ALL there is no mask, which is cheaper."""
    if ALL:
        return tl.load(at)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return tl.load(at, inside, 0.0)
