"""One fault of two gateways, injected several times under load, and what its clients see.

Owns the clients of both gateways (each asks again, at the other gateway, when its connection ends),
the order of an injection and its figures. Must not know how a fault is made.

A client whose gateway dies before the head of its answer asks again as the official clients do,
half a second later; a cut stream is sent again whole. Four streams of each injection have prompts
that no other request has: they show where a request lands that comes again.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from tests.chaos.fleet import until
from tests.chaos.pair import ANSWER_TOKENS, HOSTS, Pair, open_pair
from tests.chaos.pair_faults import PairFault
from tests.chaos.report import missed, spread
from tests.chaos.traffic import (
    SILENCE_S,
    Answers,
    Prompt,
    Stream,
    Traffic,
    learn,
    make_prompts,
)
from tests.fakes.checked_http import checked_async_client
from tests.fakes.provider import FakeProvider, open_provider

NUM_CLIENTS: Final = 8
NUM_MARKED: Final = 4
MARKED_WORDS: Final = (110, 115)
"""500 tokens, or 770 with the prefix that half of them share: most of the window. A short
prompt takes as long on a worker without its prefix."""
RETRY_S: Final = 0.5
SPEND_EVERY_S: Final = 0.1
PAID_PER_INJECTION: Final = 30
"""What the limits allow; some 80 are asked for."""
MAX_TRIES: Final = 4
FREED_S: Final = 1.0
LEAST_CACHED: Final = 0.9
"""The least share of the cut streams that find their prefix when they are sent again. It is below
1, because conversations leave a worker that is much busier than the other.
"""
LINK_PATIENCE_S: Final = 0.3
"""A link whose proxy stands still for longer may be lost: heartbeats come every 0.2 s and are
waited for for 0.6 s."""
BACK_S: Final = 60.0
BLOCK: Final = 32
AROUND_S: Final = 3.0
"""Gaps of the other gateway's streams count so long after an injection."""


@dataclass(slots=True)
class Told:
    """What the injections have shown; seconds."""

    freed_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    other_gap_s: list[float] = field(default_factory=list)
    num_again: int = 0
    num_same_worker: int = 0
    num_cached: int = 0
    astray: list[str] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)


def given_up_again(lines: Sequence[str], late_s: float) -> str:
    """What is wrong with a gateway that workers have given up more often than they should; "" if
    nothing is, or if the harness itself stood still and with it all links.
    """
    if not lines or late_s > LINK_PATIENCE_S:
        return ""
    return f"a worker gave the gateway up again: {'; '.join(lines)}"


class PairStory:
    """`run` returns a row of the report; nothing but a broken harness raises."""

    def __init__(
        self,
        pair: Pair,
        fault: PairFault,
        prompts: list[Prompt],
        expected: Answers,
        seed: int,
        provider: FakeProvider,
        most_requests: int,
    ) -> None:
        self._pair = pair
        self._provider = provider
        self._most_requests = most_requests
        self._paid: Counter[str] = Counter()
        self._fault = fault
        self._prompts = prompts
        self._seed = seed
        self._traffic = Traffic("", prompts, expected)
        self._clients: list[httpx.AsyncClient] = []
        self._victim: int | None = None
        self._marked: list[tuple[Prompt, Stream]] = []
        self._told = Told()
        self._num_cut = 0
        self._is_stopping = False

    async def run(self, num_injections: int, *, peace_s: float = 2.0) -> dict[str, Any]:
        """Both gateways take turns as the victim."""
        async with AsyncExitStack() as stack:
            for host in range(len(HOSTS)):
                client = checked_async_client(self._pair.url(host), timeout_s=SILENCE_S)
                self._clients.append(await stack.enter_async_context(client))
            async with trio.open_nursery() as nursery:
                for number in range(NUM_CLIENTS):
                    nursery.start_soon(self._ask_on_and_on, number)
                for host in range(len(HOSTS)):
                    nursery.start_soon(self._spend, host)
                await trio.sleep(peace_s)
                try:
                    for turn in range(num_injections):
                        await self._inject(turn % len(HOSTS), turn)
                        await trio.sleep(peace_s)
                except* AssertionError as group:
                    for error in group.exceptions:
                        self._problem(str(error))
                self._is_stopping = True
        await self._check_marked()
        if len(self._provider.requests) > self._most_requests:
            self._problem(f"{len(self._provider.requests)} requests were paid: OVERSPENT")
        return self._row()

    async def _ask_on_and_on(self, number: int) -> None:
        rng = random.Random(self._seed * 1000 + number)
        while not self._is_stopping:
            await self._ask(number % len(HOSTS), rng.choice(self._prompts))

    async def _spend(self, host: int) -> None:
        """Requests to the provider as fast as one client asks, until long after the limit."""
        request = {
            "model": "cloud",
            "messages": [{"role": "user", "content": "Who?"}],
            "max_tokens": ANSWER_TOKENS,
        }
        while not self._is_stopping:
            try:
                reply = await self._clients[host].post("/chat/completions", json=request)
                outcome = str(reply.status_code)
            except httpx.TransportError:
                outcome = "lost"
            self._paid[outcome] += 1
            if outcome not in {"200", "429", "503", "lost"}:
                self._problem(f"a paid request was answered with {outcome}")
            await trio.sleep(SPEND_EVERY_S)

    async def _ask(self, home: int, prompt: Prompt) -> list[Stream]:
        """The tries of one request, the last of which is judged."""
        tries: list[Stream] = []
        host = home
        while len(tries) < MAX_TRIES:
            stream = await self._traffic.receive(self._clients[host], prompt, host)
            tries.append(stream)
            if not stream.is_lost:
                break
            self._num_cut += 1
            if host != self._victim or not self._fault.cuts:
                self._problem(f"a stream of the other gateway: {stream.error}")
            host = (host + 1) % len(HOSTS)
            await trio.sleep(RETRY_S)
        self._traffic.judge(tries[-1])
        return tries

    async def _inject(self, victim: int, turn: int) -> None:
        async with trio.open_nursery() as nursery:
            for prompt in self._marked_prompts(turn):
                nursery.start_soon(self._ask_marked, victim, prompt)
            await until(lambda: self._num_marked_begun() == NUM_MARKED, "marked streams")
            num_before = len(self._pair.given_up(victim))
            self._pair.take_late_s()
            self._victim, at = victim, time.time()
            await self._fault.hurt(self._pair, victim)
            num_due = num_before + self._fault.num_freed

            def is_freed() -> bool:
                return len(self._pair.given_up(victim)) >= num_due

            await until(is_freed, f"{self._fault.num_freed} workers without the gateway")
            if self._fault.num_freed:
                self._told.freed_s.append(time.time() - at)
            await self._fault.heal(self._pair, victim)
            await until(lambda: self._pair.has_workers(victim), "its workers", timeout_s=BACK_S)
            self._told.late_s.append(self._pair.take_late_s())
            if text := given_up_again(self._pair.given_up(victim)[num_due:], self._told.late_s[-1]):
                self._problem(text)
        await trio.sleep(max(0.0, at + AROUND_S - time.time()))
        self._measure_others(1 - victim, at)

    def _marked_prompts(self, turn: int) -> list[Prompt]:
        """Long, and of this injection alone."""
        made = make_prompts(NUM_MARKED, self._seed + turn + 1, (180, 200), words=MARKED_WORDS)
        first = 1000 * (turn + 1)
        return [replace(prompt, number=first + prompt.number) for prompt in made]

    def _num_marked_begun(self) -> int:
        running = list(self._traffic.running)
        return sum(stream.prompt.number >= 1000 and bool(stream.times) for stream in running)

    async def _ask_marked(self, victim: int, prompt: Prompt) -> None:
        first, *others = await self._ask(victim, prompt)
        last = others[-1] if others else first
        self._marked.append((prompt, last))
        if not others or not first.times:
            return
        told = self._told
        told.num_again += 1
        told.again_s.append(last.times[0] - first.ended_at if last.times else SILENCE_S)
        told.num_same_worker += last.worker == first.worker
        # At least the last token is computed anew.
        if last.cached_tokens >= (last.prompt_tokens - 1) // BLOCK * BLOCK:
            told.num_cached += 1
        else:
            told.astray.append(f"prompt {prompt.number} of {first.worker}: {last.route}")

    def _measure_others(self, other: int, at: float) -> None:
        """The largest pause of each stream of the gateway that was let alone."""
        for stream in (*self._traffic.over, *self._traffic.running):
            if stream.gateway == other:
                times = [one for one in stream.times if at - 0.5 <= one <= at + AROUND_S]
                gaps = [later - earlier for earlier, later in pairwise(times)]
                self._told.other_gap_s += [max(gaps)] if gaps else []

    async def _check_marked(self) -> None:
        """Check the marked streams. Their expected answers are found afterwards."""
        prompts = [prompt for prompt, _ in self._marked]
        try:
            expected = await learn(self._pair.url(0), prompts, concurrency=4)
        except AssertionError as error:
            self._problem(f"marked streams cannot be repeated: {error}")
            return
        for prompt, stream in self._marked:
            if stream.answer != expected[prompt.number]:
                self._problem(f"marked stream {prompt.number}: WRONG BYTES")

    def _row(self) -> dict[str, Any]:
        told = self._told
        figures = {
            "freed": spread(told.freed_s),
            "again": spread(told.again_s),
            "other_gap": spread(told.other_gap_s),
        }
        return {
            "answers": len(self._traffic.over),
            "cut": self._num_cut,
            **{name: values for name, values in figures.items() if values},
            **self._second_tries(),
            "late_s": round(max(told.late_s, default=0.0), 3),
            "paid": f"{len(self._provider.requests)} of {self._most_requests}",
            "paid_answers": dict(sorted(self._paid.items())),
            "missed": self._missed(figures),
            "problems": self._traffic.problems,
        }

    def _second_tries(self) -> dict[str, Any]:
        """Where the marked streams landed that came again, and why those that lost their prefix."""
        told = self._told
        if not told.num_again:
            return {}
        return {
            "same_worker": f"{told.num_same_worker} of {told.num_again}",
            "prefix_cached": f"{told.num_cached} of {told.num_again}",
            **({"astray": told.astray} if told.astray else {}),
        }

    def _missed(self, figures: dict[str, dict[str, float]]) -> list[str]:
        told = self._told
        found = missed({"freed": figures["freed"]}, {"freed": FREED_S}, told.late_s)
        if told.num_cached < LEAST_CACHED * told.num_again:
            found.append(f"{told.num_cached} of {told.num_again} found their prefix")
        return found

    def _problem(self, text: str) -> None:
        self._traffic.problems.append(f"{self._fault.name}: {text}")


async def run_pair(
    folder: Path,
    fault: PairFault,
    prompts: list[Prompt],
    expected: Answers,
    num_injections: int,
    seed: int,
    *,
    peace_s: float = 2.0,
) -> dict[str, Any]:
    """A row: that fault in a fleet of its own. More is asked of the provider than limits allow."""
    most_requests = PAID_PER_INJECTION * num_injections
    usage = {"prompt_tokens": 10, "completion_tokens": ANSWER_TOKENS}
    fake = FakeProvider(usage={**usage, "total_tokens": 10 + ANSWER_TOKENS}, delay_s=0.05)
    async with (
        open_provider(fake) as provider,
        open_pair(folder, provider.base_url, most_requests) as pair,
    ):
        story = PairStory(pair, fault, prompts, expected, seed, provider, most_requests)
        return await story.run(num_injections, peace_s=peace_s)
