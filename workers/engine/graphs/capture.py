"""How a step becomes a CUDA graph.

Owns the streams and the memory of a capture, and the memory that it leaves to others. Must not know
what the step computes, nor when.

A graph is never freed, because its memory lies in a pool that all graphs share. So a capture must
not take memory that the largest step without a graph needs, or that step would fail from then on.
`sparing` holds that memory during a capture: if too little is left the capture fails instead, and
no more graphs are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias, final

import torch
from torch import Tensor

Replay: TypeAlias = Callable[[], Tensor]
"""Runs a step once more, on what its inputs hold now. The contiguous result is valid until another
step of the same `Capture` is run or captured; read it before, on the same stream."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], Replay]
"""Makes a step replayable, and runs it. Raises `torch.OutOfMemoryError`; then everything is as
before, except what the step itself writes and memory that the pool has taken.
"""

Hold: TypeAlias = Callable[[int], AbstractContextManager[None]]
"""Holds that many bytes during a `with`. Raises `torch.OutOfMemoryError`."""


def sparing(
    capture: Capture, num_bytes: int, hold: Hold, agreed: Callable[[bool], bool] = bool
) -> Capture:
    """A `capture` that leaves `num_bytes` to steps that are launched kernel by kernel. It also
    replays the step once, because the driver takes memory for a graph at its first run. If memory
    ran out at a later first run, repeating the step with fewer chunks would not help.

    `agreed` turns whether the memory is there into whether all ranks of the engine have it: graphs
    of one rank alone would pad its rows otherwise than those of the others.
    """

    def capture_beside(step: Callable[[], Tensor]) -> Replay:
        with ExitStack() as held:
            lacking = None
            try:
                held.enter_context(hold(num_bytes))
            except torch.OutOfMemoryError as error:
                lacking = error
            if not agreed(lacking is None):
                raise lacking or torch.OutOfMemoryError("another rank lacks memory for graphs")
            replay = capture(step)
            replay()
            return replay

    return capture_beside


@contextmanager
def held_on_card(num_bytes: int) -> Iterator[None]:
    """A `Hold` on the current card. It empties torch's cache, because kernels that are loaded
    meanwhile or later ask the driver for memory.
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
    """Captures graphs that share one pool of memory and one stream, because they never run at once.

    Graphs also share the memory of their results: 256 rows of logits over a vocabulary of 152k are
    78 MB, and those of some 20 graphs would be half a gigabyte. cuBLAS keeps a workspace for every
    stream, 32 MiB on Hopper, which would be a gigabyte for some 30 streams. A small card does not
    have either beside its keys and values.
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
            # Also after an error. The next step shares inputs, counters and scratch memory with
            # what was launched until then, and torch stays on the stream of a failed capture.
            torch.cuda.set_stream(current)
            current.wait_stream(self._stream)

    def _captured(self, step: Callable[[], Tensor], current: torch.cuda.Stream) -> Replay:
        stream = self._stream
        stream.wait_stream(current)
        # The first run compiles kernels and takes workspaces: neither may happen in a capture.
        with torch.cuda.stream(stream):
            step()
        graph = torch.cuda.CUDAGraph()
        # Waits for the card, and gives back all memory that torch keeps for later. What other
        # threads ask of the driver meanwhile (pages of the host that are locked, NCCL's watch)
        # would otherwise spoil the capture.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        ):
            result = step()
        place = _place_of(result)
        del result

        def replay() -> Tensor:
            graph.replay()
            return place

        return replay


class _Bytes:
    """Memory of a card that a tensor owns, by Numba's array interface."""

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
    """A `Capture` without a card: runs the step once, and its replay is the step itself."""
    step()
    return step
