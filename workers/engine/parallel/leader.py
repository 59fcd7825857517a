"""The first rank of an engine: the others repeat what its runner is called.

Owns the others, be they processes of this host or on other hosts, and the one way in which ranks
part: the engine ends with a cause. Must not know what a step computes, nor how ranks start and
meet.

A step that fails on one rank leaves the others waiting in a sum, so no failure of a step is the
failure of one request here, as it is for an engine of one rank: the supervisor starts all ranks
again.
"""

import queue
import shutil
import subprocess
import sys
import threading
import traceback
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn, final

import msgspec

from protocol.messages import EngineFacts, Grammar
from workers.engine.drafting.drafter import Drafter
from workers.engine.grammar.sequence_grammar import SequenceGrammar
from workers.engine.parallel.calls import (
    CallChannel,
    CollectCall,
    DigestReport,
    LaunchCall,
    PrepareCall,
    TransferCall,
)
from workers.engine.parallel.copies import RankReport, RanksCopies
from workers.engine.parallel.processes import RankProcesses
from workers.engine.runner import InFlight, ModelRunner
from workers.engine.tier.engine_tier import EngineTier
from workers.loop import DeviceUse
from workers.scheduler import StepPlan, StepResult, WindowSizes

_NOTICED_S: Final = 0.5
"""How long a rank that has lost another waits for the end of that process."""

CHECKED_STEPS: Final = 100
"""A follower's tokens are compared with the first rank's tokens each time this many steps have run.
"""


class OtherRanks(ABC):
    """The other ranks of an engine, told by `channels`, that of rank 1 first. `part` ends this
    process with a cause, from any thread. `copied` holds what they report of their copies.
    """

    def __init__(self, channels: Sequence[CallChannel], part: Callable[[str], NoReturn]) -> None:
        self._part = part
        self._channels = channels
        self._digests: dict[int, int] = {}
        self.num_others = len(channels)
        self.copied: queue.SimpleQueue[RankReport] = queue.SimpleQueue()

    @abstractmethod
    def why(self, error: Exception) -> str:
        """The cause of an error of this rank. Often it is the end of another rank, which is
        known soon.
        """

    @abstractmethod
    def end_of(self, index: int) -> str:
        """How rank `index` has ended."""

    def leave(self, cause: str) -> NoReturn:
        """End this process."""
        self._part(cause)

    def watch(self) -> None:
        """Read what the ranks report, each in a thread, and end with the first that ends."""
        for index, channel in enumerate(self._channels, 1):
            threading.Thread(
                target=self._watch, args=(index, channel), name=f"rank {index}", daemon=True
            ).start()

    def tell(self, call: LaunchCall | CollectCall | PrepareCall | TransferCall) -> None:
        """Have all other ranks make this call."""
        for index, channel in enumerate(self._channels, 1):
            try:
                channel.send(call)
            except OSError:
                self.leave(self.end_of(index))

    def compare(self, index: int, steps: int, digest: int) -> None:
        """Compare the tokens that rank `index` has sampled in its first `steps` steps with those of
        the rank that reported first.
        """
        if self._digests.setdefault(steps, digest) != digest:
            self.leave(f"rank {index} sampled other tokens than another within {steps} steps")
        self._digests.pop(steps - 10 * CHECKED_STEPS, None)

    def _watch(self, index: int, channel: CallChannel) -> None:
        while (report := channel.take_report()) is not None:
            if isinstance(report, DigestReport):
                self.compare(index, report.steps, report.digest)
            else:
                self.copied.put((index, report))
        self.leave(self.end_of(index))


@final
class Followers(OtherRanks):
    """Ranks on this host, in `processes` that this one has started."""

    def __init__(self, processes: RankProcesses, part: Callable[[str], NoReturn]) -> None:
        self.folder = processes.folder
        self._processes = processes.all
        super().__init__(processes.channels, part)
        self.watch()

    def all_met(self) -> None:
        """Remove the folder in which the ranks met."""
        shutil.rmtree(self.folder)

    def why(self, error: Exception) -> str:
        """See `OtherRanks`."""
        for index, process in enumerate(self._processes, 1):
            try:
                process.wait(_NOTICED_S)
            except subprocess.TimeoutExpired:
                continue
            return self.end_of(index)
        return f"rank 0 of the engine failed: {type(error).__name__}: {error}"

    def end_of(self, index: int) -> str:
        """See `OtherRanks`."""
        status = self._processes[index - 1].wait()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"rank {index} of the engine ended {how}"

    def leave(self, cause: str) -> NoReturn:
        """See `OtherRanks`."""
        # The folder is still there if ranks have not met.
        shutil.rmtree(self.folder, ignore_errors=True)
        super().leave(cause)


@final
class DistantRanks(OtherRanks):
    """Ranks on other hosts, whose supervisors start them. `peers` are their addresses."""

    def __init__(
        self,
        channels: Sequence[CallChannel],
        peers: Sequence[str],
        part: Callable[[str], NoReturn],
    ) -> None:
        super().__init__(channels, part)
        self._peers = peers

    def why(self, error: Exception) -> str:
        """See `OtherRanks`. The end of another rank is noticed by the thread that reads of it."""
        return f"rank 0 of the engine failed: {type(error).__name__}: {error}"

    def end_of(self, index: int) -> str:
        """See `OtherRanks`."""
        return f"rank {index} of the engine, on {self._peers[index - 1]}, has ended or is cut off"


@final
class LeadingRunner:
    """`workers.loop.Runner` over this rank's runner and its followers. `model` is this rank's."""

    def __init__(
        self, runner: ModelRunner, followers: OtherRanks, part: Callable[[str], NoReturn]
    ) -> None:
        self.facts: EngineFacts = runner.facts
        self.eos_ids = runner.eos_ids
        self.model_dir = runner.model_dir
        self.model = runner.model
        self._runner = runner
        self._followers = followers
        self._part = part
        self._digest = TokenDigest()
        self._is_prepared = False
        if runner.tier is not None:
            own, others = runner.tier.copies, followers
            runner.tier.copies = RanksCopies(own, others.num_others, others.tell, others.copied)

    @property
    def lookahead(self) -> int:
        """See `ModelRunner`."""
        return self._runner.lookahead

    @property
    def drafter(self) -> Drafter | None:
        """See `ModelRunner`; of this rank. How many drafts it makes is a part of plans."""
        return self._runner.drafter

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """See `ModelRunner`."""
        return self._runner.verified_rows

    @property
    def tier(self) -> EngineTier | None:
        """See `ModelRunner`. Moves are parts of plans, and each rank moves its share. The copies of
        this tier are done when all ranks have done them.
        """
        return self._runner.tier

    @property
    def windows(self) -> WindowSizes | None:
        """See `ModelRunner`."""
        return self._runner.windows

    @property
    def num_sequences(self) -> int:
        """See `ModelRunner`; of this rank."""
        return self._runner.num_sequences

    @property
    def used_graph(self) -> bool:
        """See `ModelRunner`; of this rank."""
        return self._runner.used_graph

    @property
    def device_use(self) -> DeviceUse:
        """See `ModelRunner`; of this rank."""
        return self._runner.device_use

    @property
    def has_pending_captures(self) -> bool:
        """See `ModelRunner`."""
        return self._runner.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        """See `ModelRunner`. All ranks have the same preparations left."""
        if not self.has_pending_captures and (pending_only or self._is_prepared):
            return False
        self._followers.tell(PrepareCall(pending_only))
        with self._together():
            did_some = self._runner.prepare(pending_only=pending_only)
        self._is_prepared = not (did_some or pending_only)
        return did_some

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        return self.collect(self.launch(plan))

    def launch(self, plan: StepPlan) -> InFlight:
        """See `ModelRunner`."""
        bare, grammars = without_grammars(plan)
        self._followers.tell(LaunchCall(bare, grammars))
        with self._together():
            return self._runner.launch(plan)

    def collect(self, step: InFlight) -> StepResult:
        """See `ModelRunner`."""
        self._followers.tell(CollectCall())
        with self._together():
            result = self._runner.collect(step)
        if self._digest.add(result):
            self._followers.compare(0, self._digest.steps, self._digest.value)
        return result

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Calls that the other ranks make too: they wait for one that fails in this."""
        is_done = False
        try:
            yield
            is_done = True
        finally:
            error = None if is_done else sys.exception()
            if isinstance(error, Exception):
                traceback.print_exception(error)
                self._part(self._followers.why(error))


class TokenDigest:
    """A digest of all tokens that were sampled, for the comparison of ranks."""

    def __init__(self) -> None:
        self.steps = 0
        self.value = 0

    def add(self, result: StepResult) -> bool:
        """Take in a step; returns whether its digest is to be compared."""
        for item in result.sampled:
            self.value = zlib.crc32(array("q", (item.seq, *item.ids)).tobytes(), self.value)
        self.steps += 1
        return self.steps % CHECKED_STEPS == 0


def without_grammars(
    plan: StepPlan,
) -> tuple[StepPlan, dict[int, tuple[Grammar, "array[int]"]]]:
    """The plan without compiled grammars, which belong to one process, and what they were made
    of.
    """
    found = {
        start.seq: (start.grammar.source, start.token_ids[start.num_prompt :])
        for start in plan.started
        if isinstance(start.grammar, SequenceGrammar)
    }
    if not found:
        return plan, found
    started = [msgspec.structs.replace(start, grammar=None) for start in plan.started]
    return msgspec.structs.replace(plan, started=tuple(started)), found
