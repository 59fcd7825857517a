"""Whether an error means that memory ran out, whatever raised it, and whose memory it is.

Owns the error texts of torch, Triton, the driver and NVIDIA's libraries: torch has a type for its
own allocations on CUDA only. Such an error leaves the card's context intact, so smaller steps can
go on. Must not know how it is handled.
"""

import re
from typing import Final

import torch

_OF_HOST: Final = re.compile(r"can't allocate memory")  # torch on a CPU

_WORDS: Final = re.compile(
    r"\bout of memory\b"  # CUDA's runtime, and Triton where it loads a kernel
    r"|CUDA_ERROR_OUT_OF_MEMORY"  # `kernels.cuda.driver`
    r"|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"  # workspaces and handles
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a card."""
    if isinstance(error, torch.OutOfMemoryError) or is_of_host(error):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


def is_of_host(error: BaseException) -> bool:
    """Whether an allocation failed on the host, not on a card."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _OF_HOST.search(str(error)) is not None


def shortage(error: BaseException) -> str:
    """What ran out and what was asked for, in one line. A `MemoryError` may have no text."""
    line = str(error).strip().partition("\n")[0]
    if not is_of_host(error):
        return line
    return f"out of memory of the host{f': {line}' if line else ''}"
