"""Siblings: the other gateway processes on the same port, whose data one dashboard shows too.

Owns how they are asked, by the control sockets of this host, and how their overviews and this one's
are merged. They are asked only while a page or a terminal is open. One that does not answer within
`ANSWER_S` is left out; `processes` of the overview says how many it covers. Must not know HTTP.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from gateway.conversations import ConversationRow
from gateway.dashboard.overview import MAX_RECENT, MAX_REQUESTS, MAX_TALKS
from gateway.dashboard.rows import (
    ClientRow,
    ModelRow,
    Overview,
    ProviderRow,
    RequestRow,
    Totals,
    WorkerRow,
)
from gateway.telemetry import percentile
from housekeeping.process_files import runtime_dir, this_process
from protocol.control_messages import (
    GATEWAY_SOCKET,
    Ask,
    AskOverview,
    AskRequest,
    Shown,
)
from protocol.errors import ConfigError, HermaError
from protocol.transport import ask_control

ANSWER_S: Final = 1.0
SHARED_S: Final = 0.5
_WORST_FIRST: Final = ("down", "cloud", "starting", "busy", "well")

_decode = msgspec.json.Decoder(Overview).decode
_replace = msgspec.structs.replace


@final
class Siblings:
    """The processes that serve `url`. `seen` are their overviews as of the last look."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looked_at = float("-inf")
        self.seen: tuple[Overview, ...] = ()

    async def look(self) -> None:
        """Ask all of them, unless that was done within the last half second."""
        now = trio.current_time()
        if now - self._looked_at >= SHARED_S:
            self._looked_at = now
            answers = await self._ask(AskOverview(self._url))
            self.seen = tuple(one for answer in answers if (one := _overview(answer)) is not None)

    async def explain(self, name: str) -> msgspec.Raw | None:
        """The request of that name, if one of them has it; as JSON."""
        return next(iter(await self._ask(AskRequest(self._url, name))), None)

    async def _ask(self, question: Ask) -> list[msgspec.Raw]:
        """The answers of the processes that give one, in the order of their sockets."""
        found: dict[Path, msgspec.Raw] = {}

        async def ask_one(path: Path) -> None:
            try:
                with trio.move_on_after(ANSWER_S):
                    answer = await ask_control(path, question)
                    if isinstance(answer, Shown):
                        found[path] = answer.json
            except HermaError:
                return  # the process has ended, or has another version

        async with trio.open_nursery() as nursery:
            for path in _other_sockets():
                nursery.start_soon(ask_one, path)
        return [found[path] for path in sorted(found)]


def _overview(answer: msgspec.Raw) -> Overview | None:
    """The overview in an answer; None if its process has another version with other fields."""
    try:
        return _decode(answer)
    except msgspec.ValidationError:
        return None


def _other_sockets() -> list[Path]:
    """The control sockets of other gateways; none if their folder cannot be used, which each
    gateway has logged at its start.
    """
    own = this_process().name(GATEWAY_SOCKET)
    try:
        paths = runtime_dir().glob(f"herma-*-{GATEWAY_SOCKET}")
    except ConfigError:
        return []
    return [path for path in paths if path.name != own]


def merged(own: Overview, others: Sequence[Overview]) -> Overview:
    """One overview of all processes. Facts that all of them know (states of workers and models,
    limits, savings) are taken from `own`; counts are added up. The condition is the worst that any
    of them reports.
    """
    if not others:
        return own
    every = (own, *others)
    worst = min(every, key=lambda one: _WORST_FIRST.index(one.condition))
    requests = [row for one in every for row in one.requests]
    recent = [row for one in every for row in one.recent]
    return _replace(
        own,
        processes=len(every),
        replaced=sum(one.replaced for one in every),
        condition=worst.condition,
        words=worst.words,
        totals=_totals([one.totals for one in every], [*requests, *recent]),
        models=_models(every),
        workers=_workers(every),
        requests=tuple(sorted(requests, key=attrgetter("age_s"), reverse=True)[:MAX_REQUESTS]),
        recent=tuple(sorted(recent, key=_ended_at, reverse=True)[:MAX_RECENT]),
        clients=_clients(every),
        conversations=_conversations(every),
        prefixes=tuple(row for one in every for row in one.prefixes),
        providers=_providers(every),
    )


def _ended_at(row: RequestRow) -> float:
    return row.unix_time + row.age_s


def _totals(every: Sequence[Totals], rows: Iterable[RequestRow]) -> Totals:
    """The totals of all processes: sums, except the times to the first token, which are computed
    from the requests that are shown.
    """
    names = (
        "open", "queued", "tokens_per_s", "ended", "failed", "by_cloud", "prompt_tokens",
        "cached_tokens", "output_tokens",
    )  # fmt: skip
    sums = {name: sum(getattr(one, name) for one in every) for name in names}
    firsts = sorted(1000 * row.first_s for row in rows if row.first_s is not None)
    return Totals(
        **sums,
        first_p50_ms=percentile(firsts, 0.5),
        first_p95_ms=percentile(firsts, 0.95),
        firsts=len(firsts),
    )


def _models(every: Sequence[Overview]) -> tuple[ModelRow, ...]:
    queued: dict[str, int] = {}
    for one in every:
        for row in one.models:
            queued[row.name] = queued.get(row.name, 0) + row.queued
    return tuple(_replace(row, queued=queued[row.name]) for row in every[0].models)


def _workers(every: Sequence[Overview]) -> tuple[WorkerRow, ...]:
    speeds: dict[str, float] = {}
    for one in every:
        for row in one.workers:
            speeds[row.name] = speeds.get(row.name, 0.0) + row.tokens_per_s
    return tuple(_replace(row, tokens_per_s=round(speeds[row.name], 1)) for row in every[0].workers)


def _clients(every: Sequence[Overview]) -> tuple[ClientRow, ...]:
    rows: dict[str, ClientRow] = {}
    for one in every:
        for row in one.clients:
            before = rows.get(row.name, ClientRow(row.name, 0, 0))
            rows[row.name] = ClientRow(
                row.name,
                before.prompt_tokens + row.prompt_tokens,
                before.cached_tokens + row.cached_tokens,
            )
    return tuple(sorted(rows.values(), key=lambda row: -row.prompt_tokens))


def _conversations(every: Sequence[Overview]) -> tuple[ConversationRow, ...]:
    rows = [row for one in every for row in one.conversations]
    return tuple(sorted(rows, key=attrgetter("seen_at"), reverse=True)[:MAX_TALKS])


def _providers(every: Sequence[Overview]) -> tuple[ProviderRow, ...]:
    rows = {row.name: row for row in every[0].providers}
    for one in every[1:]:
        for row in one.providers:
            if (before := rows.get(row.name)) is not None:
                rows[row.name] = ProviderRow(
                    row.name,
                    before.is_open or row.is_open,
                    before.spent + row.spent,
                    before.reserved + row.reserved,
                    before.unpriced + row.unpriced,
                )
    return tuple(rows.values())
