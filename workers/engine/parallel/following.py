"""What a rank other than the first does: it makes each call that the first rank tells it, in order.

Owns this loop. The rank's tokens go nowhere, but their digest goes back. Must not know processes,
nor how ranks meet.
"""

import queue
import threading
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final, final

import msgspec

from protocol.messages import Grammar
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.models.model_config import read_model_config
from workers.engine.parallel.calls import (
    Call,
    CallChannel,
    CollectCall,
    DigestReport,
    LaunchCall,
    PrepareCall,
)
from workers.engine.parallel.leader import TokenDigest
from workers.engine.runner import InFlight, ModelRunner
from workers.model_dir import TOKENIZER_NAME
from workers.scheduler import StepPlan

_MOST_CALLS: Final = 16
"""Calls that wait: the first rank is at most a few ahead."""


def follow(runner: ModelRunner, channel: CallChannel) -> None:
    """Make the first rank's calls to its end."""
    follower = FollowingRank(runner, channel)
    for call in _arriving(channel):
        follower.make(call)


def _arriving(channel: CallChannel) -> Iterator[Call]:
    """The calls, read ahead by a thread, so that the first rank does not wait for this one."""
    calls: queue.Queue[Call | None] = queue.Queue(_MOST_CALLS)

    def read() -> None:
        while (call := channel.take()) is not None:
            calls.put(call)
        calls.put(None)

    threading.Thread(target=read, name="calls", daemon=True).start()
    return iter(calls.get, None)


@final
class FollowingRank:
    """One rank's runner, and the steps that are in flight on it."""

    def __init__(self, runner: ModelRunner, channel: CallChannel) -> None:
        self._runner = runner
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
                    self._channel.report(DigestReport(self._digest.steps, self._digest.value))
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
