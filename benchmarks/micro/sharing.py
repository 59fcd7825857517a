"""The CPU time of grouping decodes that share prefixes, by number of decodes and of prefixes.

`same` is a step like the one before it, `growth` one in which a sequence fills a block, `arrival`
one in which a sequence ends and another one starts; `layout` makes the items of new groups, which a
step with an arrival needs too. Each sequence has 1k tokens of its own after a prefix of 12k.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.micro.figures import MicroFigure, lower_quartile_us
from kernels.attention import SharingCosts
from kernels.attention.config import EXTEND_CONFIG
from kernels.attention.work import segment_bucket
from workers.engine.step.shared_prefixes import SharedPrefixes
from workers.scheduler import Chunk

_BLOCK_SIZE = 32
_SHARED, _OWN = 12_288 // _BLOCK_SIZE, 1_024 // _BLOCK_SIZE
_HEADS, _KV = 32, 8
_COSTS = SharingCosts(tile_rows=32, tile=1.6, row=100, step=28_000)


def measure(quick: bool) -> Iterator[MicroFigure]:
    """Lower quartiles of CPU time."""
    num_steps = 10 if quick else 300
    for num_seqs, num_prefixes in itertools.product((64, 256), (1, 8)):
        case = f"{num_seqs} decodes, {num_prefixes} prefixes"
        for what, times_s in _steps(num_seqs, num_prefixes, num_steps).items():
            yield MicroFigure(case, what, lower_quartile_us(times_s))


def _steps(num_seqs: int, num_prefixes: int, num_steps: int) -> dict[str, list[float]]:
    blocks = itertools.count()
    prefixes = [_take(blocks, _SHARED) for _ in range(num_prefixes)]

    def decode(seq: int) -> Chunk:
        ids = prefixes[seq % num_prefixes] + _take(blocks, _OWN + 1)
        return Chunk(seq, (_SHARED + _OWN) * _BLOCK_SIZE, 1, ids, samples=True)

    chunks = [decode(seq) for seq in range(num_seqs)]
    shared = SharedPrefixes(_COSTS, _BLOCK_SIZE)
    bucket = segment_bucket(0, 0, _HEADS, _KV, EXTEND_CONFIG, num_sharing=num_seqs)
    shared.order(chunks)
    times: dict[str, list[float]] = {"same": [], "growth": [], "arrival": [], "layout": []}
    for seq in range(num_seqs, num_seqs + num_steps):
        chunks = list(chunks)
        times["same"].append(_timed(partial(shared.order, chunks)))
        index = seq % num_seqs
        grown = chunks[index].block_ids + _take(blocks, 1)
        chunks[index] = Chunk(chunks[index].seq, chunks[index].start, 1, grown, samples=True)
        times["growth"].append(_timed(partial(shared.order, chunks)))
        gone, chunks = chunks[0], [*chunks[1:], decode(seq)]
        ending = _timed(partial(shared.forget, [gone.seq]))
        coming = _timed(partial(shared.order, chunks))
        times["arrival"].append(ending + coming)
        order = shared.order(chunks)
        if order is None:
            raise RuntimeError("nothing is shared")
        words = np.zeros(bucket.num_words, np.int32)
        lay_out = partial(bucket.lay_out, (), num_seqs, words, order.runs)
        times["layout"].append(_timed(lay_out))
    return times


def _take(blocks: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(blocks, count))


def _timed(call: Callable[[], object]) -> float:
    started_at = time.process_time()
    call()
    return time.process_time() - started_at
