"""An engine in this process: the real loop, scheduler and runner, driven by a client's thread.

Owns their assembly, which is that of `workers.engine`, and the order of shutdown. The loop has the
main thread, as in production.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

from benchmarks.engine.client import MODEL, BenchClient, MemoryChannel
from benchmarks.engine.trace import StepTrace
from workers.engine.parallel.leader import LeadingRunner
from workers.engine.runner import ModelRunner, largest_id
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import Shutdown, encode_control
from workers.loop.heartbeat import EngineStatus
from workers.loop.loop import EngineLoop, GrammarCompiler, scheduler_for
from workers.scheduler.drafting import Proposer
from workers.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts that can be inspected while nothing runs."""

    scheduler: Scheduler
    runner: ModelRunner | LeadingRunner

    def check_idle(self) -> None:
        """Raise `IntegrityError` if records contradict each other, `RuntimeError` for a leak."""
        self.scheduler.check_integrity()
        load = self.scheduler.load(0, 0.0, 0.0)
        if load.running or load.waiting or load.free_blocks != load.num_blocks:
            raise RuntimeError(f"not idle: {load}")


@final
class MeasuredEngine:
    """Serves one client at a time; sequences and prefix cache live on between them. `prepared_s` is
    the time that the engine took to capture graphs before the first client.
    """

    def __init__(
        self,
        runner: ModelRunner | LeadingRunner,
        *,
        max_waiting: int,
        trace: StepTrace | None = None,
        compiler: GrammarCompiler | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """`trace` records every step. Without `compiler` grammars are refused. `proposer` gives
        decodes drafts.
        """
        scheduler = scheduler_for(
            runner,
            MODEL,
            max_waiting=max_waiting,
            vocab_size=runner.model.config.vocab_size,
            largest=largest_id,
            enforces_grammars=compiler is not None,
            proposer=proposer,
            tier=None if runner.tier is None else runner.tier.host_tier(time.monotonic()),
            swaps=runner.tier is not None and runner.tier.swaps,
            windows=runner.device_use.windows(runner.facts.block_size),
        )
        self._compiler = compiler
        self.books = EngineParts(scheduler, runner)
        self.prepared_s = 0.0
        self._trace = trace

    def serve(self, act: Callable[[BenchClient], None]) -> None:
        """Run the loop while `act` runs in a thread of its own. Raises the engine's error, else
        that of `act`.
        """
        channel = MemoryChannel()
        runner = self.books.runner if self._trace is None else self._trace.over(self.books.runner)
        books, compiler = self.books, self._compiler
        loop = EngineLoop(
            runner, books.scheduler, channel, EngineStatus(), epoch=0, compiler=compiler
        )
        with ThreadPoolExecutor(1, "client") as threads:
            future = threads.submit(_act_and_settle, act, channel)
            leave = [(SUPERVISOR, encode_control(Shutdown()))]
            future.add_done_callback(lambda _: channel.put(leave))
            try:
                loop.run()
            finally:
                channel.stop()
        self.prepared_s += future.result()


def _act_and_settle(act: Callable[[BenchClient], None], channel: MemoryChannel) -> float:
    """Run `act`, then wait until the engine is idle. Returns the seconds before `act` until it was
    idle.
    """
    started_at = time.perf_counter()
    channel.settle()
    prepared_s = time.perf_counter() - started_at
    act(BenchClient(channel))
    # A step that runs ahead of the last answer belongs to this client too.
    channel.settle()
    return prepared_s
