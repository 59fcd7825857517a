"""The reports of a start about its phases."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, float, str], None]
"""Phase, fraction done, detail."""


@contextmanager
def phase_of(report: Report, phase: str, detail: str) -> Iterator[None]:
    """Report the phase before it starts, and its time afterwards."""
    report(phase, 0.0, detail)
    started_at = time.perf_counter()
    yield
    report(phase, 1.0, f"{detail}: {time.perf_counter() - started_at:.2f} s")
