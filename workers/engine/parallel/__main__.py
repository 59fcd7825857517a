"""`python -m workers.engine.parallel --fd N --parent PID`: one rank but the first of an engine.

Owns the loop of a follower: it makes each call that the first rank tells it, in order. Its tokens
go nowhere, but their digest goes back. It ends with the first rank.
"""

import argparse
import os
import queue
import signal
import socket
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
from setproctitle import setproctitle

from housekeeping.signals import die_with_parent
from protocol.errors import HermaError
from protocol.messages import Grammar
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.models.model_config import read_model_config
from workers.engine.parallel.calls import (
    BeginRank,
    Call,
    CallChannel,
    CollectCall,
    DigestReport,
    LaunchCall,
    PrepareCall,
)
from workers.engine.parallel.leader import TokenDigest
from workers.engine.parallel.start import load_following
from workers.engine.runner import InFlight
from workers.model_dir import TOKENIZER_NAME
from workers.scheduler import StepPlan

_MOST_CALLS = 16
"""Calls that wait: the first rank is at most a few ahead."""


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
        follower = FollowingRank(begin, channel)
        for call in _arriving(channel):
            follower.make(call)
    except HermaError as error:
        print(f"rank {begin.rank}: {error}", file=sys.stderr)
        return 1
    return 0


def _arriving(channel: CallChannel) -> Iterator[Call]:
    """The calls, read ahead by a thread, so that the first rank does not wait for this one."""
    calls: queue.Queue[Call | None] = queue.Queue(_MOST_CALLS)

    def read() -> None:
        while (call := channel.take()) is not None:
            calls.put(call)
        calls.put(None)

    threading.Thread(target=read, name="calls", daemon=True).start()
    return iter(calls.get, None)


class FollowingRank:
    """One rank's runner, and the steps that are in flight on it."""

    def __init__(self, begin: BeginRank, channel: CallChannel) -> None:
        """Loads the rank's share of the model and meets the others. Raises `ConfigError`."""
        self._runner = load_following(begin.config, begin.rank, Path(begin.folder))
        self._channel = channel
        self._flying: deque[InFlight] = deque()
        self._digest = TokenDigest()
        self._compiler: LlGuidanceCompiler | None = None

    def make(self, call: Call) -> None:
        """Make a call of the first rank's runner."""
        match call:
            case LaunchCall(plan, grammars):
                self._flying.append(self._runner.launch(self._with_grammars(plan, grammars)))
            case CollectCall():
                if self._digest.add(self._runner.collect(self._flying.popleft())):
                    self._channel.send(DigestReport(self._digest.steps, self._digest.value))
            case PrepareCall(pending_only):
                self._runner.prepare(pending_only=pending_only)
            case _:
                raise AssertionError(f"the first rank sent {call}")

    def _with_grammars(
        self, plan: StepPlan, grammars: dict[int, tuple[Grammar, "array[int]"]]
    ) -> StepPlan:
        """The plan with each sequence's grammar, compiled here as the first rank has done it."""
        if not grammars:
            return plan
        compiler = self._grammar_compiler()
        started = [
            msgspec.structs.replace(start, grammar=compiler.compile(*grammars[start.seq]))
            if start.seq in grammars
            else start
            for start in plan.started
        ]
        return msgspec.structs.replace(plan, started=tuple(started))

    def _grammar_compiler(self) -> LlGuidanceCompiler:
        if self._compiler is None:
            folder = self._runner.model_dir
            assert (folder / TOKENIZER_NAME).is_file()
            vocab_size = read_model_config(folder).vocab_size
            self._compiler = LlGuidanceCompiler(folder, vocab_size, self._runner.eos_ids)
        return self._compiler


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
