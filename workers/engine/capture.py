"""How a step becomes a CUDA graph.

Owns the streams and the memory of a capture. Must not know what the step computes, nor when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import torch
from torch import Tensor

Replay: TypeAlias = Callable[[], Tensor]
"""Runs a step once more, on what its inputs hold now. The result, contiguous, stays what it is
until another step of the same `Capture` is run or captured: read it before, on the same stream."""

Capture: TypeAlias = Callable[[Callable[[], Tensor]], Replay]
"""Makes a step replayable. Runs it; raises `torch.OutOfMemoryError`."""


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
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        # The first run compiles kernels and takes workspaces: neither may happen in a capture.
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            result = step()
        place = _place_of(result)
        del result

        def replay() -> Tensor:
            graph.replay()
            return place

        return replay


class _Bytes:
    """Memory of a card that somebody else owns, in the words of Numba's array interface."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.nbytes,),
            "typestr": "|u1",
            "version": 2,
        }


def _place_of(tensor: Tensor) -> Tensor:
    """The same numbers at the same place, whoever has that memory next."""
    if not tensor.nbytes:
        return tensor
    there = torch.as_tensor(_Bytes(tensor), device=tensor.device)
    return there.view(tensor.dtype).view(tensor.shape)


def run_again(step: Callable[[], Tensor]) -> Replay:
    """A `Capture` where there is no card: the step itself, run once as a capture would."""
    step()
    return step
