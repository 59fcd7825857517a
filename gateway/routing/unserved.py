"""The errors of requests for a model that no worker serves now.

Owns the texts and their Retry-After. Must not know when a request is given up.
"""

from collections.abc import Sequence
from typing import Final

from gateway.api import errors
from gateway.routing.admission_queue import retry_after_s, start_retry_after_s
from gateway.routing.worker import ATTACHING, Worker

DOWN_RETRY_AFTER_S: Final = 10
"""Retry-After while no worker serves the model and none starts: only an operator can help."""


def unserved_error(
    model: str, starting: Sequence[Worker], now: float, *, resumed: bool
) -> errors.ApiError:
    """The error while no worker of the model is ready. `resumed`: text of the answer was sent."""
    if resumed:
        return errors.connection_lost()
    if not starting:
        text = f"No worker serves {model} now and none is starting."
        return errors.unavailable(text, DOWN_RETRY_AFTER_S)
    wait_s = min(
        start_retry_after_s(now - w.since, w.progress.fraction if w.progress else 0.0)
        for w in starting
    )
    if all(w.progress is not None and w.progress.phase == ATTACHING for w in starting):
        names = ", ".join(worker.name for worker in starting)
        text = f"No engine answers at the address of {names}, which serves {model}."
        return errors.unavailable(text, DOWN_RETRY_AFTER_S)
    # The cause of an earlier engine's death is left out: it holds paths and foreign text.
    progress = _start_progress(starting)
    how_far = f" ({progress})" if progress else ""
    return errors.unavailable(f"The workers of {model} are still starting{how_far}.", wait_s)


def asleep_error(model: str, asleep: Sequence[Worker]) -> errors.ApiError:
    """The error while the workers of the model sleep. What keeps them is for operators."""
    due_s = min((worker.due_s for worker in asleep if worker.due_s), default=0.0)
    if all(worker.sleep_trouble for worker in asleep):
        text = f"{model} is asleep, and its device has no room for it now."
        return errors.unavailable(text, retry_after_s(due_s or DOWN_RETRY_AFTER_S))
    text = f"{model} is asleep and takes its turn soon."
    return errors.unavailable(text, retry_after_s(due_s or DOWN_RETRY_AFTER_S))


def _start_progress(starting: Sequence[Worker]) -> str:
    """The progress of the start that is furthest, in words; "" if none has reported any."""
    starts = [(worker, worker.progress) for worker in starting if worker.progress]
    if not starts:
        return ""
    best, progress = max(starts, key=lambda start: start[1].fraction)
    return f"{best.name}: {progress.phase} {progress.fraction:.0%}"
