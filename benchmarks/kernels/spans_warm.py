"""`python -m benchmarks.kernels.spans_warm`: attention of spans in a card at its power limit.

Owns how long each is run, and the table. Ours and the library's take turns, each for most of a
second, because a card that is cool is a tenth faster than one that has multiplied for a second.
"""

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.kernels.attention import DIM, HEADS, KV, normal, paged
from kernels.attention import PagedPlan, PrefillSpan, library
from kernels.attention.choose import SPANS
from kernels.attention.prefill import prefill
from kernels.attention.work import prefill_work, to_device

_MEASURED = ((0, 8192), (0, 16384), (16384, 16384), (12_000, 4000), (32_000, 1000), (8192, 300))
_TURNS, _TURN_S = 3, 0.6
_CALLS = 16
"""Between two looks at the clock."""

Run = Callable[[], object]


def main() -> None:
    """Print microseconds and TFLOP/s of every turn."""
    device = torch.device("cuda")
    print("| rows behind keys | what | us | TFLOP/s |\n|---|---|---|---|")
    for start, length in _MEASURED:
        runs = list(_runs(start, length, device))
        flops = 4 * HEADS["8B"] * DIM * (length * start + length * (length + 1) // 2)
        for turn in range(_TURNS + 1):
            for name, run in runs:
                ms = _ms(run)
                if turn:  # the first one warms
                    line = f"| {length} behind {start} | {name} | {ms * 1e3:.0f} |"
                    print(f"{line} {flops / ms / 1e9:.0f} |", flush=True)


def _runs(start: int, length: int, device: torch.device) -> Iterator[tuple[str, Run]]:
    heads, span = HEADS["8B"], PrefillSpan(0, length, start, 0)
    queries = normal(length, heads, DIM, device=device)
    keys, values, tables = paged([start + length], device)
    nothing = torch.empty(0, dtype=torch.int32, device=device)
    plan = PagedPlan(nothing, nothing, tables, 0, (span,))
    work = to_device(prefill_work([span], 0, heads, KV, SPANS, library=False), device)
    out = queries.new_empty(length, heads * DIM)
    yield "ours", lambda: prefill(queries, keys, values, plan, work, SPANS, out)
    form = library.form(heads, KV, DIM, torch.bfloat16)
    if form is not None:
        yield (
            f"cudnn {form.__name__}",
            lambda: library.attend_span(form, queries, keys, values, plan, span),
        )


def _ms(run: Run) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    until, calls = time.perf_counter() + _TURN_S, 0
    begin.record()
    while time.perf_counter() < until:
        for _ in range(_CALLS):
            run()
        calls += _CALLS
        torch.cuda.synchronize()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


if __name__ == "__main__":
    main()
