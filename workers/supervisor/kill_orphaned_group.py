"""Kills an engine's process group once its supervisor is gone, however that died.

Owns nothing but the wait. Run by path as a process of its own, with standard input a pipe that
only the supervisor writes to: end of file means that the supervisor lives no more. The engine
itself dies by the kernel's parent-death signal; what it has started (compilers, ranks, servers)
gets none, and would hold the GPU for nobody. Imports nothing of ours, so that it starts in 10 ms.
"""

import os
import signal
import sys


def main() -> None:
    """Wait, then end the group whose number is the only argument."""
    while os.read(0, 1):
        pass
    try:
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left


if __name__ == "__main__":
    main()
