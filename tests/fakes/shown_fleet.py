"""A fleet to look at: what a dashboard reads, without engines.

Owns the stand-ins for the parts that the dashboard asks; workers, traces, events and money are the
gateway's own classes. `step` moves the fleet on by a second: requests come, wait, are answered and
end; all of it follows from a seed.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import trio

from config import FallbackConfig
from gateway.api import Usage
from gateway.conversations import ConversationBook
from gateway.dashboard import Dashboard
from gateway.http.edge import Edge
from gateway.http.routes import edge_app
from gateway.routing import QueuePosition, WorkerView
from gateway.routing.worker import Worker
from gateway.spending.limits import Account, LimitWindow, Saving, SpendingFigures
from gateway.telemetry import (
    AttemptTrace,
    BreakerOpen,
    CandidateWorker,
    EventFeed,
    FallbackOff,
    FallbackOn,
    GatewayCounters,
    History,
    Reading,
    RequestTrace,
    RequestTraces,
    Rerouted,
    Resumed,
    SpendingThreshold,
    WorkerBack,
    WorkerReady,
    WorkerStarting,
)
from protocol.ids import WorkerId
from protocol.messages import EngineFacts, Fault, Load, Progress
from tests.fakes.asgi import Script, model_view, scripted_edge
from tests.fakes.fleet import facts, hello
from tests.fakes.served import served

MODELS = ("qwen3-coder-30b", "qwen3-8b", "glm-4.6-air")
CLIENTS = ("hermes-agent", "claude-cli", "codex", "openai", "opencode")
KEYS = ("research", "build", "alice", "nightly")
NOW = 1_795_437_000.0


@dataclass
class Growing:
    """The answer of one sequence."""

    num_tokens: int = 0


@dataclass
class Chosen:
    """A decision between workers."""

    why: str
    candidates: tuple[CandidateWorker, ...]


@dataclass
class _Live:
    trace: RequestTrace
    output: Growing
    wants: int
    speed: float
    attempt: AttemptTrace | None = None


class ShownFleet:
    """`num_workers` workers, all ready but two where there are many."""

    def __init__(self, num_workers: int = 16, seed: int = 7) -> None:
        self.rng = random.Random(seed)
        self.clock = 1_000.0
        self.feed = EventFeed(unix_time=lambda: NOW + self.clock)
        self.traces = RequestTraces()
        self.history = History()
        self.queue: list[int] = []
        self.live: list[_Live] = []
        self.away: set[str] = set()
        self.clients = {
            "hermes-agent": (512_300_000, 476_200_000),
            "claude-cli": (231_800_000, 196_100_000),
            "codex": (90_400_000, 61_000_000),
            "opencode": (12_100_000, 1_900_000),
            "openai": (820_000, 0),
        }
        self.workers = [self._worker(number) for number in range(num_workers)]
        if num_workers > 4:
            self.workers[-1] = Worker(WorkerId(bytes([250]) * 16), hello("h200-starting"), 0.0)
            self.workers[-1].progress = Progress(1, "loading weights", 0.62)
            self.workers[-2].fail(
                Fault("box-15", 1, "exit code 137: killed by the kernel, out of memory", 137,
                      is_final=True, kind="killed"), 1.0)  # fmt: skip
        self._ticket = 0

    def dashboard(self) -> Dashboard:
        """The real one, over these parts."""
        parts = SimpleNamespace(
            dispatcher=SimpleNamespace(
                models=self._models,
                workers=self._views,
                positions=self._positions,
                num_waiting=len(self.queue),
            ),
            traces=self.traces,
            feed=self.feed,
            counters=GatewayCounters(),
            spending=SimpleNamespace(figures=self._figures, refuses_all=lambda _chain: False),
            conversation_tracker=SimpleNamespace(rows=ConversationBook().rows, prefixes=lambda: ()),
            health=SimpleNamespace(open_names=lambda: {"deepseek": False, "openrouter": True}),
        )
        board = Dashboard(
            cast("Any", parts),
            "0.1.0",
            unix_time=lambda: NOW + self.clock,
            now=lambda: self.clock,
        )
        board._history = self.history
        board._started_at = NOW - 11_000
        overview = board.overview
        board.overview = lambda clients: overview({**clients, **self.clients})  # type: ignore[method-assign]
        return board

    def edge(self, **fields: Any) -> Edge:
        """An HTTP edge with this fleet behind its dashboard."""
        edge = scripted_edge(Script(), **fields)
        return replace(
            edge, dashboard=self.dashboard(), listen=self.feed.listen, traces=self.traces
        )

    def past(self, seconds: int = 3600) -> "ShownFleet":
        """Let an hour have gone by."""
        for at in range(0, seconds, 5):
            self.clock += 5
            self._sample(at / seconds)
        for _ in range(60):
            self.step()
        return self

    def step(self, seconds: float = 1.0, arrivals: int = 4) -> None:
        """Move on."""
        self.clock += seconds
        for _ in range(arrivals):
            if len(self.live) < 9 * len(self.workers):
                self._arrive()
        for one in list(self.live):
            self._go_on(one, seconds)
        for worker in self.workers:
            if worker.engine is not None:
                self._report(worker)

    def publish(self, count: int) -> None:
        """Events of every grade."""
        for _ in range(count):
            name = self.rng.choice(self.workers).name
            model = self.rng.choice(MODELS)
            self.feed.publish(
                self.rng.choice(
                    (
                        WorkerStarting(name, 2),
                        WorkerReady(name, 1, (model,), "NVIDIA H200"),
                        WorkerBack(name, 2, (model,), "NVIDIA H200"),
                        Rerouted("5f1c22ab", model, name, "its engine died"),
                        Resumed("9ab0c3d4", model, name, "its engine died", 812),
                        FallbackOn(model, ("deepseek",), f"no worker of {model} is ready"),
                        FallbackOff(model, 3),
                        BreakerOpen("provider", "openrouter", 20.0, "HTTP 502"),
                        SpendingThreshold("provider", "deepseek", "daily", 80),
                    )
                )
            )

    def _worker(self, number: int) -> Worker:
        engine = replace_facts(facts(max_seqs=32, kv_tokens=1_200_000), number)
        model = MODELS[number % len(MODELS)]
        return Worker(
            WorkerId(bytes([number + 1]) * 16), hello(f"box-{number}", engine, models=(model,)), 0.0
        )

    def _positions(self) -> dict[int, QueuePosition]:
        return {
            ticket: QueuePosition(at, self.clock) for at, ticket in enumerate(self.queue, start=1)
        }

    def _models(self) -> tuple[Any, ...]:
        cloud = (FallbackConfig(provider="deepseek", model="deepseek-chat"),)
        return tuple(
            model_view(
                name,
                fallback=cloud if at < 2 else (),
                ready_workers=sum(
                    worker.ready and name in worker.models for worker in self.workers
                ),
                queued=len(self.queue) if at == 0 else 0,
                context_length=131_072,
                is_fallback_on=name in self.away,
                state="down" if name in self.away else "ready",
            )
            for at, name in enumerate(MODELS)
        )

    def _views(self) -> tuple[WorkerView, ...]:
        return tuple(
            worker.view(28_000 + 137 * at if worker.ready else 0)
            for at, worker in enumerate(self.workers)
        )

    def _figures(self) -> SpendingFigures:
        return SpendingFigures(
            currency="EUR",
            spent={"deepseek": 1_738_800, "openrouter": 212_000},
            reserved={"deepseek": 40_000},
            windows=(
                LimitWindow(
                    Account("provider", "deepseek"), "daily", 5_000_000, 4_238_800, 240_000
                ),
                LimitWindow(
                    Account("provider", "deepseek"), "monthly", 50_000_000, 17_500_000, 40_000
                ),
                LimitWindow(Account("key", "research"), "daily", 2_000_000, 612_000, 0),
            ),
            savings=(
                saving("qwen3-coder-30b", 812_345_678, 700_345_678, 9_234_567, 66_480_000),
                saving("qwen3-8b", 212_000_000, 150_000_000, 4_100_000, 23_310_000),
            ),
        )

    def _arrive(self) -> None:
        rng = self.rng
        trace = RequestTrace(
            id=f"chatcmpl-{rng.getrandbits(96):024x}",
            api=rng.choice(("chat", "chat", "messages", "responses")),
            key=rng.choice(KEYS),
            client=rng.choice(CLIENTS),
            received_at=self.clock - rng.random(),
            unix_time=NOW + self.clock,
        )
        self.traces.enter(trace)
        output = Growing()
        model = rng.choice(MODELS)
        turn = trace.turn
        turn.model, turn.prompt_tokens = model, rng.choice((900, 8_200, 24_000, 61_000))
        turn.names, turn.outputs = (rng.randbytes(16),), [output]
        self._ticket += 1
        turn.ticket = self._ticket
        self.queue.append(self._ticket)
        self.live.append(_Live(trace, output, rng.randrange(80, 1500), rng.uniform(25, 95)))

    def _go_on(self, one: _Live, seconds: float) -> None:
        trace, turn = one.trace, one.trace.turn
        if one.attempt is None:
            if self.rng.random() < 0.75:
                self._place(one)
        elif one.attempt.first_at is None:
            one.attempt.first_at = self.clock - self.rng.random() * 0.8
            trace.first_at = one.attempt.first_at
        else:
            one.output.num_tokens += int(one.speed * seconds * self.rng.uniform(0.8, 1.2))
            if one.output.num_tokens >= one.wants:
                trace.usage = Usage(turn.prompt_tokens, one.attempt.cached_tokens, one.wants)
                trace.model, trace.ended_at = turn.model, self.clock
                trace.status = 200 if self.rng.random() < 0.97 else 502
                trace.error = "" if trace.status == 200 else "no_provider_answered"
                trace.served_by = "cloud:deepseek" if one.attempt.is_cloud else "worker"
                self.traces.end(trace)
                self.live.remove(one)

    def _place(self, one: _Live) -> None:
        turn, rng = one.trace.turn, self.rng
        self.queue.remove(turn.ticket)
        asked_at = one.trace.received_at + 0.02
        if rng.random() < 0.06:
            why = f"no worker of {turn.model} is ready"
            one.attempt = AttemptTrace("deepseek", asked_at, self.clock, why, is_cloud=True)
            turn.begin(one.attempt)
            return
        fit = [one for one in self.workers if one.ready and turn.model in one.models]
        chosen = rng.choice(fit or self.workers)
        options = tuple(
            candidate(worker.name, worker is chosen, turn.prompt_tokens, rng) for worker in fit
        )
        reason = f"{chosen.name}: its cache holds most of it"
        one.attempt = AttemptTrace(
            chosen.name, asked_at, self.clock, reason, Chosen("cached", options)
        )
        turn.begin(one.attempt)
        one.attempt.cached_tokens = int(turn.prompt_tokens * rng.choice((0.2, 0.9, 0.97)))

    def _report(self, worker: Worker) -> None:
        count = sum(
            one.attempt is not None and one.attempt.server == worker.name for one in self.live
        )
        held = min(37_000, 3_000 + 1_700 * count)
        speed = self.rng.uniform(9, 24), self.rng.uniform(7_000, 12_000)
        waiting, steps = max(0, count - 30), int(self.clock * 50)
        load = Load(1, count, waiting, 37_500 - held, 37_500, steps, 0, *speed, 32)
        worker.report(load, self.clock)

    def _sample(self, share: float) -> None:
        wave = 1 + 0.5 * random.Random(int(share * 60)).random() - 0.35 * (0.55 < share < 0.62)
        last = self.history._last
        before = last or Reading(NOW)
        firsts = [self.rng.lognormvariate(-1.2, 0.6) for _ in range(self.rng.randrange(4, 14))]
        self.history.add(
            Reading(
                unix_time=NOW + self.clock,
                ended=before.ended + 12,
                prompt_tokens=before.prompt_tokens + int(90_000 * wave),
                cached_tokens=before.cached_tokens + int(78_000 * wave),
                output_tokens=before.output_tokens
                + int(9_000 * wave * self.rng.uniform(0.85, 1.15)),
                firsts=firsts if not 0.3 < share < 0.33 else (),
            )
        )


def saving(model: str, prompt: int, cached: int, completion: int, month: int) -> Saving:
    return Saving(model, "deepseek", prompt, cached, completion, month, month // 22)


def candidate(
    name: str, is_chosen: bool, prompt_tokens: int, rng: random.Random
) -> CandidateWorker:
    """A worker that was weighed; the chosen one costs least."""
    cached = int(prompt_tokens * (0.97 if is_chosen else rng.choice((0.0, 0.3, 0.3))))
    uncached = prompt_tokens - cached
    wait, prefill = rng.uniform(0, 20), uncached / 8.0
    delay = rng.uniform(5, 60)
    return CandidateWorker(
        name, is_chosen, rng.randrange(2, 12), cached, uncached,
        round(wait, 1), round(prefill, 1), round(delay, 1), round(wait + prefill + delay, 1),
    )  # fmt: skip


def replace_facts(engine: EngineFacts, number: int) -> EngineFacts:
    """Devices of several kinds."""
    import msgspec

    device = ("NVIDIA H200", "NVIDIA H100", "GB10", "RTX 5090")[number % 4]
    return msgspec.structs.replace(engine, device=device)


@asynccontextmanager
async def shown(
    fleet: ShownFleet, *, events_per_s: int = 0, patience_s: float = 600.0, **fields: Any
) -> AsyncIterator[str]:
    """The URL of a page with that fleet, which goes on while it is looked at."""
    app = edge_app(fleet.edge(**fields))
    async with served(app, patience_s) as url, trio.open_nursery() as nursery:
        nursery.start_soon(_go_on, fleet, events_per_s)
        yield url
        nursery.cancel_scope.cancel()


async def _go_on(fleet: ShownFleet, events_per_s: int) -> None:
    while True:
        for _ in range(10):
            await trio.sleep(0.1)
            fleet.publish(events_per_s // 10)
        fleet.step()
