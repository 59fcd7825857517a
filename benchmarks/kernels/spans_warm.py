"""`python -m benchmarks.kernels.spans_warm`: attention of spans in a card at its power limit.

Owns how long each is run, and the table. Ours and the library's take turns, each for most of a
second, because a card that is cool is a tenth faster than one that has multiplied for a second.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.kernels.attention import DIM, HEADS, KV, OURS, cases
from benchmarks.kernels.case import Case
from kernels.attention import library

_PLACES = ("8k cold", "16k cold", "16k behind 16k", "4000 behind 12k", "1000 behind 32k")
_TURNS, _TURN_S = 3, 0.6
_CALLS = 16
"""Between two looks at the clock."""

Run = Callable[[], object]


def main() -> None:
    """Print microseconds and TFLOP/s of every turn."""
    wanted = {f"prefill 8B {place}" for place in _PLACES}
    print("| case | what | us | TFLOP/s |\n|---|---|---|---|")
    for case in cases(torch.device("cuda")):
        if case.name not in wanted:
            continue
        runs = _runs(case)
        for turn in range(_TURNS + 1):
            for name, run in runs.items():
                ms = _ms(run)
                if turn:  # the first one warms
                    speed = case.flops / ms / 1e9
                    print(f"| {case.name} | {name} | {ms * 1e3:.0f} | {speed:.0f} |", flush=True)


def _runs(case: Case) -> dict[str, Run]:
    """Ours, and the form that serves of the library's."""
    form = library.form(HEADS["8B"], KV, DIM, torch.bfloat16)
    theirs = None if form is None else f"cudnn {form.__name__}"
    inputs = case.make()
    return {
        variant.name: partial(variant.run, *inputs)
        for variant in case.variants
        if variant.name.startswith(OURS) or variant.name == theirs
    }


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
