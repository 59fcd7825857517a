"""All local workers are lost: a provider answers, and stops doing so when they are back.

Owns that one story and its bars. Must not know how a provider misbehaves: this one is well.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from tests.chaos.fleet import Fleet, open_fleet, until
from tests.chaos.measure import noticed_at
from tests.chaos.traffic import Answers, Prompt, Traffic
from tests.fakes.provider import FakeProvider, open_provider

LATENCY_S: Final = 0.1
AWAY_BAR_S: Final = 0.2
RETURN_BAR_S: Final = 5.0
NUM_STREAMS: Final = 4
NUM_ASKED: Final = 8
FALLBACK = 'fallback = [{ provider = "far", model = "big" }]\n'
PROVIDER = '[providers.far]\nbase_url = "{url}"\n'


@dataclass(slots=True)
class Covered:
    """Seconds: from a request to the provider's first word, less its own latency; from the first
    engine that could serve to the last answer of the provider.
    """

    away_s: list[float] = field(default_factory=list)
    return_s: list[float] = field(default_factory=list)
    num_answers: int = 0
    problems: list[str] = field(default_factory=list)


async def run_cover(
    folder: Path,
    prompts: list[Prompt],
    expected: Answers,
    num_injections: int,
    *,
    peace_s: float = 3.0,
) -> Covered:
    """Kill both workers `injections` times, in turn by their engines and by their supervisors."""
    covered = Covered()
    async with open_provider(FakeProvider(delay_s=LATENCY_S)) as provider:
        tables = PROVIDER.format(url=provider.base_url)
        async with open_fleet(folder, 2, fallback=FALLBACK, providers=tables) as fleet:
            for turn in range(num_injections):
                story = _Story(fleet, covered, prompts, expected)
                await story.tell(turn)
                await trio.sleep(peace_s)
    return covered


class _Story:
    def __init__(
        self, fleet: Fleet, covered: Covered, prompts: list[Prompt], expected: Answers
    ) -> None:
        self._fleet = fleet
        self._covered = covered
        self._prompts = prompts
        self._traffic = Traffic(fleet.herma.base_url, prompts, expected)
        self._since = time.time()

    async def tell(self, turn: int) -> None:
        fleet, traffic = self._fleet, self._traffic
        limits, url = httpx.Limits(max_connections=32), fleet.herma.base_url
        async with (
            httpx.AsyncClient(timeout=90, limits=limits, base_url=url) as client,
            trio.open_nursery() as nursery,
        ):
            for prompt in self._prompts[:NUM_STREAMS]:
                nursery.start_soon(traffic.ask, client, prompt)
            await until(self._all_have_text, "streams with text")
            await self._lose_all(turn)
            await self._ask_while_away(client)
            for name in fleet.names:
                fleet.release_starts(name)
            await self._ask_until_back(client)
        self._covered.problems += traffic.problems
        self._covered.num_answers += len(traffic.over)
        self._check_events()

    def _all_have_text(self) -> bool:
        return sum(bool(stream.times) for stream in self._traffic.running) == NUM_STREAMS

    async def _lose_all(self, turn: int) -> None:
        fleet = self._fleet
        hit: Callable[[str, int], None] = (fleet.signal_engine, fleet.signal_supervisor)[turn % 2]
        since = time.time()
        for name in fleet.names:
            fleet.hold_starts(name)
        for name in fleet.names:
            hit(name, signal.SIGKILL)

        def all_noticed() -> bool:
            events = fleet.events()
            return all(noticed_at(events, name, since) is not None for name in fleet.names)

        await until(all_noticed, "a word on both workers")

    async def _ask_while_away(self, client: httpx.AsyncClient) -> None:
        """One by one, as an agent does; each must go straight to the provider."""
        for number in range(NUM_ASKED):
            asked_at = time.time()
            served_by, _ = await _ask(client, stream=bool(number % 2))
            self._covered.away_s.append(time.time() - asked_at - LATENCY_S)
            if served_by != "cloud:far":
                self._covered.problems.append(f"away, but served by {served_by}")

    async def _ask_until_back(self, client: httpx.AsyncClient) -> None:
        fleet = self._fleet
        able: list[float] = []

        def one_is_able() -> bool:
            found = (fleet.loaded_at(name, self._since) for name in fleet.names)
            able[:] = [at for at in found if at is not None]
            return bool(able)

        await until(one_is_able, "an engine")
        last_away, local_in_a_row = min(able), 0
        while local_in_a_row < 20:
            served_by, ended_at = await _ask(client, stream=False)
            local_in_a_row = local_in_a_row + 1 if served_by == "worker" else 0
            if served_by != "worker":
                last_away = ended_at
            if time.time() - min(able) > 60:
                self._covered.problems.append("still not local after 60 s")
                return
        self._covered.return_s.append(last_away - min(able))

    def _check_events(self) -> None:
        kinds = [event.kind for event in self._fleet.events() if event.at >= self._since]
        for kind in ("fallback on", "fallback off"):
            if kinds.count(kind) != 1:
                self._covered.problems.append(f"{kinds.count(kind)} x `{kind}`")


async def _ask(client: httpx.AsyncClient, *, stream: bool) -> tuple[str, float]:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "Who?"}],
        "max_tokens": 4,
        "stream": stream,
    }
    reply = await client.post("/chat/completions", json=body)
    is_whole = reply.status_code == 200 and (not stream or "data: [DONE]" in reply.text)
    served_by = reply.headers.get("x-herma-served-by", "") if is_whole else reply.text[:100]
    return served_by, time.time()
