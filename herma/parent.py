"""A child that does not outlive its parent.

Owns the one Linux call for it. Elsewhere the parent's own shutdown has to do.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send this process SIGTERM when its parent (thread) dies.

    Exits at once if the parent died before the call. Linux only; see prctl(2).
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(0)
