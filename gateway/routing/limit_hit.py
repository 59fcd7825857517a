"""The limit that a refused request has hit, in words.

Owns how many sequences may wait, and the text of a 429: the limit, its value, and the setting that
raises it. A request with `n` choices counts as n sequences. Must not know the order of queues or
the cost of places.
"""

from collections.abc import Sequence
from typing import Final

from gateway.routing.effects import RouteRequest
from gateway.routing.worker import Worker

LEAST_QUEUE: Final = 256
"""Without `max_queue`, at least this many sequences may wait for a model."""


def queue_limit(ready: Sequence[Worker], max_queue: int | None) -> int:
    """How many sequences of a model may wait: `max_queue`, else as many as its workers run at most,
    but at least `LEAST_QUEUE`.
    """
    if max_queue is not None:
        return max_queue
    return max(LEAST_QUEUE, sum(worker.engine.max_seqs for worker in ready if worker.engine))


def full_text(
    model: str,
    request: RouteRequest,
    ready: Sequence[Worker],
    num_waiting: int,
    max_queue: int | None,
) -> str:
    """Why a request may not wait, while `num_waiting` sequences do."""
    limit, num_new = queue_limit(ready, max_queue), request.num_sequences
    asks = "" if num_new == 1 else f", and this request asks for {num_new} more (n = {num_new})"
    return (
        f"The queue of {model} is full: {num_waiting} of {limit} sequences wait (`max_queue` in "
        f"[gateway]){asks}. {limit_of(ready)}."
    )


def late_text(model: str, ready: Sequence[Worker]) -> str:
    """Why a request found no place before its deadline."""
    return f"The deadline passed before a place for {model} was free. {limit_of(ready)}."


def limit_of(ready: Sequence[Worker]) -> str:
    """The limit that keeps the workers from taking more, and the setting that raises it."""
    engines = [worker.engine for worker in ready if worker.engine is not None]
    num_running = sum(len(worker.reservations) for worker in ready)
    most = sum(engine.max_seqs for engine in engines)
    runs = f"{num_running} of {most} sequences run"
    if num_running >= most:
        return f"{runs} (`max_seqs` in [[workers]], or another worker)"
    kv_tokens = sum(engine.kv_tokens for engine in engines)
    promised = sum(worker.kv_reserved_tokens for worker in ready)
    return (
        f"{runs}, with {promised} of {kv_tokens} tokens of keys and values promised to them "
        "(`kv_tokens` in [[workers]], or another worker)"
    )
