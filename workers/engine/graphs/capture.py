"""How a step becomes a CUDA graph.

Owns the streams and the memory of a capture, and what it leaves to others. Must not know what the
step computes, nor when.

A graph is never freed: its memory lies in a pool that all graphs share, and returns with the last
of them only. So a capture must not take memory that a step without a graph needs, or the largest
step would fail from then on: that memory is held during a capture (`sparing`), which fails instead
and ends the captures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias, final

import torch
from torch import Tensor

Replay: TypeAlias = Callable[[], Tensor]
"""Runs a step once more, on what its inputs hold now. The result, contiguous, stays what it is
until another step of the same `Capture` is run or captured: read it before, on the same stream."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], Replay]
"""Makes a step replayable. Runs it; raises `torch.OutOfMemoryError`. Then everything is as before,
but for what the step itself writes and memory that the pool has taken.
"""

Hold: TypeAlias = Callable[[int], AbstractContextManager[None]]
"""Holds that many bytes during a `with`. Raises `torch.OutOfMemoryError`."""


def sparing(capture: Capture, num_bytes: int, hold: Hold) -> Capture:
    """`capture`, which leaves `num_bytes` to steps that are launched kernel by kernel. It replays
    the step once, because the driver takes memory for a graph when that first runs: later a step
    would run out of memory there, with however few chunks it is repeated.
    """

    def capture_beside(step: Callable[[], Tensor]) -> Replay:
        with hold(num_bytes):
            replay = capture(step)
            replay()
            return replay

    return capture_beside


@contextmanager
def held_on_card(num_bytes: int) -> Iterator[None]:
    """A `Hold` of the current device. Kernels that are loaded meanwhile, or later, ask the driver
    for memory, so torch keeps no more than that.
    """
    memory = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    try:
        torch.cuda.empty_cache()
        yield
    finally:
        del memory
        torch.cuda.empty_cache()


@final
class CudaCapture:
    """All graphs share one pool of memory and one stream of captures: they never run at once.

    Results lie in that pool too, and none of them belongs to its graph: 256 rows of logits over a
    vocabulary of 152k are 78 MB, of some 20 graphs half a gigabyte. cuBLAS keeps a workspace for
    every stream that it meets, 32 MiB on Hopper: with a stream for each of some 30 graphs a
    gigabyte. Either is more than is left beside keys and values on a small card.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, step: Callable[[], Tensor]) -> Replay:
        """See `Capture`."""
        current = torch.cuda.current_stream()
        try:
            return self._captured(step, current)
        finally:
            # Where memory ran out, too: what was launched until then shares inputs, counters and
            # scratch with the next step, and torch stays on the stream of a capture that it could
            # not end.
            torch.cuda.set_stream(current)
            current.wait_stream(self._stream)

    def _captured(self, step: Callable[[], Tensor], current: torch.cuda.Stream) -> Replay:
        stream = self._stream
        stream.wait_stream(current)
        # The first run compiles kernels and takes workspaces: neither may happen in a capture.
        with torch.cuda.stream(stream):
            step()
        graph = torch.cuda.CUDAGraph()
        # Waits for the card, and gives back all memory that torch keeps for later.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            result = step()
        place = _place_of(result)
        del result

        def replay() -> Tensor:
            graph.replay()
            return place

        return replay


class _Bytes:
    """Memory of a card with another owner, by Numba's array interface."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.nbytes,),
            "typestr": "|u1",
            "version": 2,
        }


def _place_of(tensor: Tensor) -> Tensor:
    """A view of the same memory that does not own it."""
    if not tensor.nbytes:
        return tensor
    there = torch.as_tensor(_Bytes(tensor), device=tensor.device)
    return there.view(tensor.dtype).view(tensor.shape)


def run_again(step: Callable[[], Tensor]) -> Replay:
    """A `Capture` where there is no card: the step itself, run once as a capture would."""
    step()
    return step
