"""What a client is told when no worker of its model is ready.

Owns the words and when to come again. Must not know who waits, nor for how long one may.
"""

from collections.abc import Sequence
from typing import Final

from gateway.api import ApiError, connection_lost, unavailable
from gateway.routing.admission_queue import start_retry_after_s
from gateway.routing.worker_view import Worker

DOWN_RETRY_AFTER_S: Final = 10
"""Nothing can serve and nothing starts: an operator is needed, so no hurry."""


def unserved(model: str, starting: Sequence[Worker], now: float, *, resumed: bool) -> ApiError:
    """While `starting` are on their way. `resumed`: text of the answer is out already."""
    if resumed:
        return connection_lost()
    if not starting:
        text = f"No worker serves {model} now and none is starting."
        return unavailable(text, DOWN_RETRY_AFTER_S)
    wait_s = min(
        start_retry_after_s(now - w.since, w.progress.fraction if w.progress else 0.0)
        for w in starting
    )
    # Not why an earlier engine died: that holds paths, and words on which clients act.
    progress = _progress(starting)
    how_far = f" ({progress})" if progress else ""
    return unavailable(f"The workers of {model} are still starting{how_far}.", wait_s)


def _progress(starting: Sequence[Worker]) -> str:
    """How far the furthest start is, in words; "" if none has told."""
    starts = [(worker, worker.progress) for worker in starting if worker.progress]
    if not starts:
        return ""
    best, progress = max(starts, key=lambda start: start[1].fraction)
    return f"{best.name}: {progress.phase} {progress.fraction:.0%}"
