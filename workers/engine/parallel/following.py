"""What a rank other than the first does: it makes each call that the first rank tells it, in order.

Owns this loop. The rank's tokens go nowhere, but their digest goes back. Must not know processes,
nor how ranks meet.
"""

import gc
import queue
import threading
from array import array
from collections import deque
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
    OpenedReport,
    PrepareCall,
    TransferCall,
    TransferredReport,
)
from workers.engine.parallel.leader import TokenDigest
from workers.engine.runner import InFlight, ModelRunner
from workers.model_dir import TOKENIZER_NAME
from workers.scheduler import StepPlan

_MOST_CALLS: Final = 16
"""Calls that wait: the first rank is at most a few ahead."""

_LOOK_S: Final = 0.002
"""How often a rank without a call looks for the end of copies: one of 64 MiB takes 1.2 ms."""


def follow(runner: ModelRunner, channel: CallChannel) -> None:
    """Make the first rank's calls to its end."""
    follower = FollowingRank(runner, channel)
    # As in the first rank: a collection that scans torch's objects delays a step of all ranks.
    gc.freeze()
    calls = _arriving(channel)
    while True:
        try:
            call = calls.get(timeout=_LOOK_S if follower.is_copying else None)
        except queue.Empty:
            follower.report_copies()
            continue
        if call is None:
            return
        follower.make(call)
        follower.report_copies()


def _arriving(channel: CallChannel) -> "queue.Queue[Call | None]":
    """The calls, read ahead by a thread, so that the first rank does not wait for this one; None at
    its end.
    """
    calls: queue.Queue[Call | None] = queue.Queue(_MOST_CALLS)

    def read() -> None:
        while (call := channel.take()) is not None:
            calls.put(call)
        calls.put(None)

    threading.Thread(target=read, name="calls", daemon=True).start()
    return calls


@final
class FollowingRank:
    """One rank's runner, and the steps that are in flight on it."""

    def __init__(self, runner: ModelRunner, channel: CallChannel) -> None:
        self._runner = runner
        self._channel = channel
        self._flying: deque[InFlight] = deque()
        self._digest = TokenDigest()
        self._compiler: LlGuidanceCompiler | None = None
        self._num_copying = 0
        self._is_opening = runner.tier is not None
        if runner.tier is not None:
            runner.tier.region.open()

    @property
    def is_copying(self) -> bool:
        """Whether `report_copies` will have something to say though no call comes."""
        return self._num_copying > 0 or self._is_opening

    def report_copies(self) -> None:
        """Tell the first rank of transfers that are over here, and of pages that are open."""
        if self._runner.tier is None or not self.is_copying:
            return
        copies = self._runner.tier.copies
        for pages in copies.take_opened():
            self._is_opening = len(pages) > 0
            self._channel.report(OpenedReport(pages.start, pages.stop))
        for done in copies.take_done():
            self._num_copying -= 1
            sums = tuple([each for sums in done.checksums for each in sums])
            self._channel.report(TransferredReport(done.number, sums))

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
            case TransferCall(transfer):
                # Either all ranks have a host tier or none has.
                assert self._runner.tier is not None
                self._num_copying += 1
                self._runner.tier.copies.begin(transfer)
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
