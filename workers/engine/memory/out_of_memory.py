"""Whether an error means that memory ran out, whatever raised it.

Owns the error texts of torch, Triton, the driver and NVIDIA's libraries: torch has a type for its
own allocations on CUDA only. Such an error leaves the card's context intact, so smaller steps can
go on. Must not know how it is handled.
"""

import re
from typing import Final

import torch

_WORDS: Final = re.compile(
    r"can't allocate memory"  # torch on a CPU
    r"|\bout of memory\b"  # CUDA's runtime, and Triton where it loads a kernel
    r"|CUDA_ERROR_OUT_OF_MEMORY"  # `kernels.cuda.driver`
    r"|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"  # workspaces and handles
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the host or on a card."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None
