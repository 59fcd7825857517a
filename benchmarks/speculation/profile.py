"""The card's time between one verification and the next.

Owns the recording of kernels and its summary. Must not know what is served.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

_SHOWN: Final = 14
_NAME: Final = 60
_HOST_GAP_US: Final = 15.0
"""A card that is idle for longer waits for the host."""


class DeviceSpan(NamedTuple):
    """A kernel or a copy on the card, in microseconds."""

    name: str
    begin_us: float
    end_us: float


def record(run: Callable[[], int]) -> list[str]:
    """The summary of the card's work in `run`, which returns its number of steps; empty on a
    CPU.
    """
    if not torch.cuda.is_available():
        return []
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        num_steps = run()
        torch.cuda.synchronize()
    spans = [
        DeviceSpan(event.name, event.time_range.start, event.time_range.end)
        for event in recorded.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return summary(spans, num_steps)


def summary(spans: Iterable[DeviceSpan], num_steps: int) -> list[str]:
    """The parts of a step: busy, idle between kernels, idle for longer; then the kernels."""
    ordered = sorted(spans, key=lambda span: span.begin_us)
    if not ordered or not num_steps:
        return []
    busy = brief = waiting = 0.0
    at = ordered[0].begin_us
    by_name: dict[str, list[float]] = defaultdict(list)
    for span in ordered:
        gap = span.begin_us - at
        if gap > _HOST_GAP_US:
            waiting += gap
        elif gap > 0.0:
            brief += gap
        # Kernels may overlap the end of those ahead of them.
        busy += max(0.0, span.end_us - max(at, span.begin_us))
        at = max(at, span.end_us)
        by_name[span.name].append(span.end_us - span.begin_us)
    each = 1e3 * num_steps
    shares = f"busy {busy / each:.2f} ms, idle between kernels {brief / each:.2f}"
    host = f"waiting for the host {waiting / each:.2f}"
    count = len(ordered) / num_steps
    lines = [f"  {num_steps} steps, each {shares}, {host}; {count:.0f} kernels and copies"]
    ranked = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    for name, times in ranked[:_SHOWN]:
        count = len(times) / num_steps
        lines.append(f"    {sum(times) / each:6.3f} ms  {count:6.1f} x  {name[:_NAME]}")
    rest = ranked[_SHOWN:]
    count = sum(len(times) for _, times in rest) / num_steps
    lines.append(
        f"    {sum(sum(times) for _, times in rest) / each:6.3f} ms  {count:6.1f} x  others"
    )
    return lines
