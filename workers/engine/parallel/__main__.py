"""`python -m workers.engine.parallel --fd N --parent PID`: one rank but the first of an engine.

Owns the process of a follower on the first rank's host, which ends with the first rank.
"""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

from setproctitle import setproctitle

from housekeeping.imports import uncollected
from housekeeping.signals import die_with_parent
from protocol.errors import HermaError
from workers.engine.parallel.calls import BeginRank, CallChannel

with uncollected():  # torch
    from workers.engine.parallel.following import follow
    from workers.engine.parallel.start import load_following


def main(argv: list[str] | None = None) -> int:
    """Follow to the end of the first rank."""
    parser = argparse.ArgumentParser(prog="python -m workers.engine.parallel")
    parser.add_argument("--fd", type=int, required=True, help="socketpair of the first rank")
    parser.add_argument("--parent", type=int, required=True, help="its process id: die with it")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to leave
    die_with_parent(arguments.parent, signal.SIGKILL)
    channel = CallChannel(socket.socket(fileno=arguments.fd))
    begin = channel.take()
    if not isinstance(begin, BeginRank):
        return 1
    setproctitle(f"herma engine {begin.config.name} rank {begin.rank}")
    try:
        runner = load_following(begin.config, begin.rank, Path(begin.folder))
        follow(runner, channel)
    except HermaError as error:
        print(f"rank {begin.rank}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
