"""What signals do until a command handles them itself.

Owns the half second in which modules are imported: Ctrl-C ends the process without a traceback, and
SIGHUP, which asks for a reload, does not end one that is about to read its file anyway. Must not
import anything of ours before that.
"""

import signal
import sys

_RELOADABLE = frozenset({"up", "gateway", "worker"})


def main() -> int:
    """Run the command of `sys.argv`."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:  # it is ignored where a shell has started the process in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # On a terminal the signal means that the terminal is closed.
    if not (sys.stdin is None or sys.stdin.isatty()) and _RELOADABLE & {*sys.argv[1:4]}:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from herma import cli

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return cli.main()
    except KeyboardInterrupt:  # the command line was still being read
        return cli.EXIT_INTERRUPTED
