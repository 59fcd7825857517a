"""A process that does not outlive its parent.

Owns the one Linux call for it, for every process of Herma that another one starts. Must not know
who starts whom. Elsewhere than on Linux the parent's own shutdown has to do.
"""

import ctypes
import os
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int, number: int) -> None:
    """Have the kernel send this process signal `number` when its parent dies.

    `parent_pid` is who started this process, as the parent itself said. Linux sends the signal
    when the parent's thread that forked ends, so parents fork in their main thread; see prctl(2).
    A parent that died before the call is noticed by its number: this process then ends at once,
    by the same signal. Raises `OSError` if the kernel refuses.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)
