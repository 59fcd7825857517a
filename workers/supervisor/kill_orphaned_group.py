"""Kills an engine's process group once its supervisor is gone, however the supervisor died.

Runs by path as a process of its own. Standard input is a pipe that only the supervisor writes to:
end of file means that the supervisor is dead. The engine itself dies by the kernel's parent-death
signal; its children (compilers, ranks, servers) get none, and would keep the GPU busy. Imports
nothing of ours, so that it starts in 10 ms.
"""

import os
import signal
import sys


def main() -> None:
    """Wait, then kill the process group whose number is the only argument."""
    while os.read(0, 1):
        pass
    try:
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        return  # no process is left


if __name__ == "__main__":
    main()
