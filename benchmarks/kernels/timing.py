"""The time of one call inside a CUDA graph, on inputs that no cache holds.

Owns the method and the card's ceilings. Must not know any kernel.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.kernels.case import KernelCase

BYTES_PER_S = 4.26e12
"""A device copy on the H200, bytes read and written."""

FLOPS_PER_S = 794e12
"""A bf16 matrix product on the H200."""

_CACHE_BYTES = 128 * 2**20
"""Inputs rotate through more than twice the card's 50 MB of L2."""

_MAX_SETS = 64
_GRAPH_S = 2e-3
_MIN_CALLS, _MAX_CALLS = 8, 200
_REPLAYS = 7
_PROFILED = 5


def floor_us(case: KernelCase) -> float:
    """The time at the card's ceilings: the larger of the bytes' time and the arithmetic's."""
    return max(case.moved_bytes / BYTES_PER_S, case.flops / FLOPS_PER_S) * 1e6


def rotating_inputs(case: KernelCase) -> list[tuple[Any, ...]]:
    """Input sets that together far exceed the cache, or `_MAX_SETS` of small ones."""
    num_sets = 1 + -(-_CACHE_BYTES // max(1, case.moved_bytes))
    return [case.make() for _ in range(min(num_sets, _MAX_SETS))]


def time_us(
    run: Callable[..., Any], sets: list[tuple[Any, ...]], floor: float, *, is_chain: bool = False
) -> float:
    """Microseconds of one call: the median of several replays of a graph of many calls."""
    calls = int(min(_MAX_CALLS, max(_MIN_CALLS, _GRAPH_S / (floor * 1e-6), len(sets))))
    graph = _captured(run, sets, calls, is_chain=is_chain)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times_us = []
    for _ in range(_REPLAYS + 1):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times_us[1:])


def parts_us(run: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, float]:
    """Microseconds of each kernel of one call, launched one by one; of several calls the mean."""
    run(*inputs)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            run(*inputs)
        torch.cuda.synchronize()
    return {
        event.key: round(event.self_device_time_total / _PROFILED, 2)
        for event in profiler.key_averages()
        if event.self_device_time_total
    }


def call_all(
    run: Callable[..., Any], sets: list[tuple[Any, ...]], calls: int, *, is_chain: bool
) -> None:
    """So many calls on the sets in turn; of a chain each but the first with the answer ahead of it
    in place of its first input.
    """
    answer: Any = None
    for index in range(calls):
        inputs = sets[index % len(sets)]
        answer = run(answer, *inputs[1:]) if is_chain and index else run(*inputs)


def _captured(
    run: Callable[..., Any], sets: list[tuple[Any, ...]], calls: int, *, is_chain: bool
) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(*sets[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call_all(run, sets, calls, is_chain=is_chain)
    return graph
