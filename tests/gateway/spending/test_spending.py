"""Turns that cost money: real providers over HTTP, the real ledger, limits of both kinds."""

import re
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import trio

from config import (
    AllLimitsConfig,
    ConversationLimitsConfig,
    KeyConfig,
    LimitsConfig,
    PriceConfig,
    ProviderConfig,
    hash_api_key,
)
from gateway.api.errors import ApiError
from gateway.api.events import Usage
from gateway.app import edge_of
from gateway.http.routes import health_of
from gateway.spending.limits import Account, day_of
from gateway.spending.prices import Price
from gateway.store import (
    LedgerEntry,
    LedgerRow,
    LedgerStore,
    ReservationClaim,
    Settlement,
    read_report,
)
from gateway.turn.caller import Caller
from protocol.errors import ConfigError
from protocol.messages import Progress
from tests.fakes.provider import FakeProvider
from tests.fakes.running_gateway import Asked, RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

PRICE = PriceConfig(input=1.0, output=1.0)
"""A micro-unit a token: what a test costs can be counted."""

COUNTED = {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
COST = 50
MAX_TOKENS = 100
ASK = {"max_tokens": MAX_TOKENS, "stream": True}


class Shop:
    """A gateway, its providers `p0`, `p1` … and its ledger."""

    def __init__(
        self, gateway: RunningGateway, fakes: tuple[FakeProvider, ...], ledger: Path
    ) -> None:
        self.gateway = gateway
        self.fakes = fakes
        self.ledger = ledger

    async def ask(self, caller: Caller | None = None, **fields: Any) -> Asked:
        return await self.gateway.ask(caller, **{**ASK, **fields})

    async def rows(self, *by: Any) -> list[LedgerRow]:
        """What the ledger holds once no request is open and all is written."""
        await wait_until(self._is_written)
        report = read_report(self.ledger, by, "2000-01-01")
        assert report is not None
        return list(report.rows) if report.total is not None else []

    async def row(self) -> LedgerRow:
        (row,) = await self.rows()
        return row

    def _is_written(self) -> bool:
        writer = self.gateway.services.spending._writer
        if writer._reservations.ends or writer._usage or writer._thread.borrowed_tokens:
            return False
        with closing(sqlite3.connect(self.ledger)) as db:
            return db.execute("SELECT 1 FROM reservations").fetchone() is None


@asynccontextmanager
async def open_shop(
    tmp_path: Path,
    *fakes: FakeProvider,
    limits: LimitsConfig | None = None,
    key_limits: LimitsConfig | None = None,
    own: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    list_prices: str = "builtin",
    rejoin_wait_s: float = 0.01,
    **tariff: Any,
) -> AsyncIterator[Shop]:
    """`limits` are those of every provider, `key_limits` those of the key `alice`; `own` are fields
    of one provider's table.
    """
    ledger = tmp_path / "ledger.sqlite"
    fields = {"price": PRICE, "limits": limits or LimitsConfig(), **tariff}
    alice = KeyConfig(name="alice", hash=hash_api_key("x"), limits=key_limits or LimitsConfig())
    async with trio.open_nursery() as nursery:
        for fake in fakes:
            await nursery.start(fake.serve)
        model, tables = chain_of({f"p{at}": fake for at, fake in enumerate(fakes)})
        tables = {
            name: msgspec.structs.replace(one, **{**fields, **own.get(name, {})})
            for name, one in tables.items()
        }
        async with open_gateway(
            models=[model],
            providers=tables,
            keys=[alice],
            ledger=ledger,
            list_prices=list_prices,
            rejoin_wait_s=rejoin_wait_s,
        ) as gateway:
            yield Shop(gateway, fakes, ledger)
        nursery.cancel_scope.cancel()


def units(micro: int) -> float:
    return micro / 1_000_000


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_ledger_holds_what_the_provider_counted(tmp_path: Path, streamed: bool) -> None:
    """The ledger holds what the provider counted, and not what was reserved; by key, model and
    provider.
    """
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED)) as shop:
        asked = await shop.ask(Caller(key="alice"), stream=streamed)
        assert asked.error is None
        (row,) = await shop.rows("key", "model", "provider")
        assert row.group == ("alice", "alpha", "p0")
        assert (row.requests, row.prompt_tokens, row.completion_tokens) == (1, 40, 10)
        assert (row.cost, row.unsettled) == (COST, 0)
        figures = shop.gateway.services.spending.figures()
        assert figures.spent == {"p0": COST}
        assert figures.reserved == {"p0": 0}


async def test_a_conversation_spends_no_more_than_its_limit(tmp_path: Path) -> None:
    """A conversation spends no more than its limit with 16 requests at once and with those that
    follow; conversations at own workers go on.
    """
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED)) as shop:
        services = shop.gateway.services
        most = ConversationLimitsConfig(money=units(COST) * 20)
        limits = AllLimitsConfig(conversation=most)
        services.conversation_tracker.reconfigure(
            msgspec.structs.replace(services.config, limits=limits)
        )
        codes: list[str] = []

        async def ask_one(name: str = "talk") -> None:
            asked = await shop.ask(
                Caller(key="alice", session=name), session_id=name, max_tokens=10
            )
            codes.append("ok" if asked.error is None else asked.error.code or "")

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(ask_one)
        while codes[-1] != "conversation_limit_reached" and len(codes) < 100:
            await ask_one()
        assert codes[-1] == "conversation_limit_reached"
        assert 1 <= codes.count("ok") <= 20
        await ask_one("other")
        assert codes[-1] == "ok"


async def test_without_a_price_the_cost_is_unknown(tmp_path: Path) -> None:
    """Without a price the cost is unknown and in no sum: 0 would read as free."""
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED), price=None) as shop:
        assert (await shop.ask()).error is None
        row = await shop.row()
        assert (row.cost, row.unpriced) == (0, 1)
        figures = shop.gateway.services.spending.figures()
        assert (figures.spent, figures.unpriced) == ({}, {"p0": 1})


LIST = """
["127.0.0.1"]
read = 2026-10-27
source = "a test"
[ "127.0.0.1".models ]
"p0-large" = { input = 2.0, output = 3.0 }
"""


async def test_a_list_price_is_shown_and_limits_nothing(tmp_path: Path) -> None:
    """The ledger has the cost; a limit still asks for a price of the configuration."""
    path = tmp_path / "prices.toml"
    path.write_text(LIST)
    at_list = {"price": None, "list_prices": str(path)}
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED), **at_list) as shop:
        assert (await shop.ask()).error is None
        row = await shop.row()
        assert (row.cost, row.unpriced) == (40 * 2 + 10 * 3, 0)
        figures = shop.gateway.services.spending.figures()
        assert (figures.spent, figures.unpriced) == ({"p0": 110}, {})
    limits = LimitsConfig(daily=1.0)
    async with open_shop(tmp_path, FakeProvider(), limits=limits, **at_list) as shop:
        assert (await shop.ask()).error is not None
        assert shop.fakes[0].requests == []


@pytest.mark.parametrize(
    ("fault", "charged"),
    [
        ({"status": 400}, False),
        ({"status": 401}, False),
        ({"status": 429}, False),
        ({"status": 500}, False),
        ({"status": 503}, False),
        ({"status": 504}, True),
        ({"words": (), "ends": False}, True),
        ({"cut_after": 2}, True),
        ({"usage": None}, True),
        ({"stream_error": True}, True),
    ],
)
async def test_what_may_have_been_charged_counts_at_its_most(
    tmp_path: Path, fault: dict[str, Any], charged: bool
) -> None:
    """A refusal is free; an answer that was cut, or says nothing of its usage, is not."""
    async with open_shop(tmp_path, FakeProvider(**{"usage": COUNTED, **fault})) as shop:
        await shop.ask()
        rows = await shop.rows()
        assert bool(rows) == charged
        if charged:
            assert (rows[0].cost, rows[0].unsettled) == (0, 1)
            assert rows[0].unsettled_cost > MAX_TOKENS
            assert rows[0].completion_tokens == MAX_TOKENS
            assert shop.gateway.services.spending.figures().spent["p0"] == rows[0].unsettled_cost


async def test_an_unreachable_provider_costs_nothing(tmp_path: Path) -> None:
    """An unreachable provider costs nothing, because it did not get the request."""
    model, tables = chain_of({"p0": FakeProvider(base_url="http://127.0.0.1:9/v1")})
    table = msgspec.structs.replace(tables["p0"], price=PRICE)
    ledger = tmp_path / "ledger.sqlite"
    async with open_gateway(models=[model], providers={"p0": table}, ledger=ledger) as gateway:
        await gateway.ask(**ASK)
    report = read_report(ledger, (), "2000-01-01")
    assert report is not None
    assert report.total is None


async def test_a_client_that_leaves_has_paid_for_all(tmp_path: Path) -> None:
    """The provider may continue to generate, and charge for it."""
    fake = FakeProvider(words=("a",) * 10_000, usage=COUNTED, extra={"x": "y" * 1000})
    async with open_shop(tmp_path, fake) as shop:
        asked = shop.gateway.start(**ASK)
        await wait_until(lambda: bool(asked.upstream))
        asked.scope.cancel()
        row = await shop.row()
        assert (row.unsettled, row.completion_tokens) == (1, MAX_TOKENS)


async def test_over_the_limit_the_client_is_told_and_nothing_is_sent(tmp_path: Path) -> None:
    """429 with the reason and a time; the request never leaves."""
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake, limits=LimitsConfig(daily=0.0)) as shop:
        asked = await shop.ask()
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (429, "spending_limit_reached")
        assert asked.error.retry_after_s
        assert not fake.requests
        assert not await shop.rows()
        refusals = shop.gateway.services.spending.figures().refusals
        assert refusals == {(Account("provider", "p0"), "daily"): 1}


@pytest.mark.parametrize("rejoin_wait_s", [0.01, 0.5])
async def test_the_limit_is_told_while_an_attached_engine_is_away(
    tmp_path: Path, rejoin_wait_s: float
) -> None:
    """The limit is reported while an attached engine is away: after the time of a short outage no
    worker is waited for, and `/health` promises no provider that the limit forbids.
    """
    fake, worker = FakeProvider(usage=COUNTED), FakeWorker()
    limits = LimitsConfig(daily=0.0)
    async with (
        open_shop(tmp_path, fake, limits=limits, rejoin_wait_s=rejoin_wait_s) as shop,
        open_worker(shop.gateway.address, worker),
    ):
        await shop.gateway.wait_state("ready")
        worker.fail_engine()
        worker.say(Progress(worker.epoch, "attach", 0.0, "no engine there"))
        await shop.gateway.wait_state("starting" if rejoin_wait_s > 0.1 else "down")
        for stream in (True, False):
            asked = await shop.ask(stream=stream)
            assert asked.error is not None
            assert (asked.error.status, asked.error.code) == (429, "spending_limit_reached")
        await shop.gateway.wait_state("down")
        health = health_of(edge_of(shop.gateway.services))
        assert (health.status, health.models) == ("down", {"alpha": "down"})
        worker.register()
        await shop.gateway.wait_state("ready")
        assert health_of(edge_of(shop.gateway.services)).models == {"alpha": "ready"}


@pytest.mark.parametrize("price", [PRICE, PriceConfig(input=0.0, output=0.0)])
async def test_health_names_the_cloud_as_long_as_it_may_answer(
    tmp_path: Path, price: PriceConfig
) -> None:
    """Health names the cloud as long as it may answer, with money left; and what is free has no
    limit that could be reached.
    """
    daily = 0.0 if price.input == 0 else 1.0
    limits = LimitsConfig(daily=daily)
    async with open_shop(tmp_path, FakeProvider(), limits=limits, price=price) as shop:
        assert health_of(edge_of(shop.gateway.services)).models == {"alpha": "cloud"}
        assert (await shop.ask()).error is None


async def test_what_another_gateway_holds_is_not_left(tmp_path: Path) -> None:
    """Money that another gateway holds is not available, even if it was taken a moment ago; once it
    is given back, requests go on.
    """
    fake, day = FakeProvider(usage=COUNTED), day_of(time.time())
    async with open_shop(tmp_path, fake, limits=LimitsConfig(monthly=units(4_000))) as shop:
        other = await trio.to_thread.run_sync(LedgerStore, shop.ledger, "USD")
        held = LedgerEntry(day, "", "m", "p0", False, True, 1, 3_990, 0, 0, 3_990)
        other.write([ReservationClaim(1, held)], [], [])
        asked = await shop.ask()
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (429, "spending_limit_reached")
        assert asked.error.retry_after_s == 5
        other.write([], [Settlement(1, None)], [])
        spending = shop.gateway.services.spending
        await wait_until(lambda: not any(one.reserved for one in spending.figures().windows))
        assert (await shop.ask()).error is None
        assert len(fake.requests) == 1
        other.close()


async def test_the_next_provider_with_money_left_is_asked(tmp_path: Path) -> None:
    """A limit of one provider is no reason to refuse."""
    fakes = FakeProvider(usage=COUNTED), FakeProvider(usage=COUNTED)
    limits = LimitsConfig(monthly=units(4_000))
    async with open_shop(tmp_path, *fakes, limits=limits) as shop:
        served = [(await shop.ask(stream=True, max_tokens=10)).started.served_by]
        for fake in fakes:
            fake.usage = {"prompt_tokens": 3_900, "completion_tokens": 1}
        served += [(await shop.ask(max_tokens=10)).started.served_by for _ in range(2)]
        assert served == ["cloud:p0", "cloud:p0", "cloud:p1"]
        refused = await shop.ask()
        assert refused.error is not None
        assert "p0" in refused.error.message
        assert "p1" in refused.error.message
        assert refused.error.code == "spending_limit_reached"


async def test_a_keys_limit_binds_it_alone(tmp_path: Path) -> None:
    """A key's limit stops this key alone; other keys go on."""
    async with open_shop(
        tmp_path, FakeProvider(usage=COUNTED), key_limits=LimitsConfig(daily=0.0)
    ) as shop:
        refused = await shop.ask(Caller(key="alice"))
        assert refused.error is not None
        assert "API key `alice`" in refused.error.message
        assert (await shop.ask(Caller(key="bob"))).error is None


async def test_without_a_bound_on_the_output_a_limit_refuses(tmp_path: Path) -> None:
    """The model's configured bound will do as well as the client's."""
    for bound, status in ((None, 400), (64, None)):
        async with open_shop(
            tmp_path,
            FakeProvider(usage=COUNTED),
            limits=LimitsConfig(daily=1.0),
            max_output_tokens=bound,
        ) as shop:
            asked = await shop.ask(max_tokens=None)
            assert (asked.error.status if asked.error else None) == status


async def test_an_oversized_request_is_refused_for_its_size(tmp_path: Path) -> None:
    """An oversized request is refused for its size, with the cap that would fit; the event is left
    to the limit that is really spent.
    """
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake, limits=LimitsConfig(daily=units(4_000))) as shop:
        counts = shop.gateway.services.feed.counts
        assert (await shop.ask()).error is None
        refused = await shop.ask(max_tokens=5_000_000, n=16)
        assert refused.error is not None
        assert (refused.error.status, refused.error.code) == (400, "output_cap_required")
        assert counts["limit reached"] == 0
        fitting = await shop.ask(max_tokens=_cap_told(refused.error), n=16)
        assert fitting.error is None
        fake.usage = {"prompt_tokens": 3_800, "completion_tokens": 1}
        assert (await shop.ask()).error is None
        for _ in range(2):
            late = await shop.ask()
            assert late.error is not None
            assert late.error.status == 429
            assert counts["limit reached"] == 1


@pytest.mark.parametrize("bound", [None, 5_000])
async def test_the_cap_that_is_told_is_one_that_fits(tmp_path: Path, bound: int | None) -> None:
    """The cap in the error is one that fits, also for a client that sent none and whose body grows
    by it; for small and large amounts.
    """
    for limit in (1_000, 4_000):
        limits = LimitsConfig(daily=units(limit))
        fake = FakeProvider(usage=COUNTED)
        async with open_shop(
            tmp_path / str(limit), fake, limits=limits, max_output_tokens=bound
        ) as shop:
            refused = await shop.ask(max_tokens=None)
            assert refused.error is not None
            cap = _cap_told(refused.error)
            assert (await shop.ask(max_completion_tokens=cap, max_tokens=None)).error is None


def _cap_told(error: ApiError) -> int:
    found = re.search(r"a cap of at most (\d+) tokens", error.message)
    assert found is not None, error.message
    return int(found[1])


async def test_free_output_needs_no_bound(tmp_path: Path) -> None:
    """If output is free, the worst case is known without a bound on it."""
    price = PriceConfig(input=1.0, output=0.0)
    limits = LimitsConfig(daily=1.0)
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED), limits=limits, price=price) as shop:
        assert (await shop.ask(max_tokens=None)).error is None


async def test_what_the_client_can_mend_at_once_is_told_before_an_hour(tmp_path: Path) -> None:
    """The first provider has no money; the second wants a cap, and answers once it has one."""
    own = {"p0": {"limits": LimitsConfig(daily=0.0), "max_output_tokens": 64}}
    fakes = FakeProvider(usage=COUNTED), FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, *fakes, limits=LimitsConfig(daily=1.0), own=own) as shop:
        refused = await shop.ask(max_tokens=None)
        assert refused.error is not None
        assert (refused.error.status, refused.error.code) == (400, "output_cap_required")
        assert refused.error.retry_after_s is None
        assert (await shop.ask(max_tokens=50)).started.served_by == "cloud:p1"


async def test_forty_at_once_never_exceed_a_limit_worth_ten(tmp_path: Path) -> None:
    """Whatever each of forty requests costs, only ten are under way at any time, and the sum stays
    within.
    """
    async with open_shop(tmp_path, FakeProvider(usage=COUNTED)) as probe:
        await probe.ask()
    worst = Price.of_config(PRICE).worst(_reserved_prompt_tokens(), MAX_TOKENS)
    fake = FakeProvider(
        usage={"prompt_tokens": worst - MAX_TOKENS, "completion_tokens": MAX_TOKENS}
    )
    limit = 10 * worst
    async with open_shop(tmp_path, fake, limits=LimitsConfig(daily=units(limit + COST))) as shop:
        turns = [shop.gateway.start(**ASK) for _ in range(40)]
        for turn in turns:
            with trio.fail_after(PATIENCE_S):
                await turn.over.wait()
        errors = [turn.error for turn in turns if turn.error is not None]
        assert len(fake.requests) == 10
        assert len(errors) == 30
        assert {error.code for error in errors} == {"spending_limit_reached"}
        row = await shop.row()
        assert row.cost + row.unsettled_cost == limit + COST


def _reserved_prompt_tokens() -> int:
    body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], **ASK}
    return len(msgspec.json.encode(body)) + 512


async def test_a_restart_remembers(tmp_path: Path) -> None:
    """What was spent before counts, on the same ledger."""
    limits = LimitsConfig(monthly=units(700))
    for refused in (False, True):
        async with open_shop(tmp_path, FakeProvider(usage=None), limits=limits) as shop:
            asked = await shop.ask(max_tokens=10)
            assert (asked.error is not None) == refused


async def test_never_means_never(tmp_path: Path) -> None:
    """A key or a model that may not leave the house gets the local refusal."""
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake) as shop:
        asked = await shop.ask(Caller(cloud=False))
        assert asked.error is not None
        assert asked.error.status == 503
    model, tables = chain_of({"p0": fake})
    never = msgspec.structs.replace(model, cloud="never")
    async with open_gateway(models=[never], providers=tables, rejoin_wait_s=0.01) as gateway:
        refused = await gateway.ask()
        assert refused.error is not None
        assert refused.error.status == 503
    assert not fake.requests


async def test_local_usage_is_recorded_as_it_was_sent(tmp_path: Path) -> None:
    """Usage of own workers is recorded as it was reported: by key, without cost, and soon."""
    ledger = tmp_path / "ledger.sqlite"
    async with open_gateway(ledger=ledger) as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        shop = Shop(gateway, (), ledger)
        sent: list[Usage] = [
            (await gateway.ask(Caller(key=key))).usage for key in ("alice", "alice", "bob")
        ]
        rows = await shop.rows("key", "provider")
    assert [(row.group, row.requests) for row in rows] == [(("alice", ""), 2), (("bob", ""), 1)]
    assert sum(row.prompt_tokens for row in rows) == sum(one.prompt_tokens for one in sent)
    assert sum(row.completion_tokens for row in rows) == sum(one.completion_tokens for one in sent)
    assert not any(row.cost for row in rows)


async def test_local_work_for_a_client_that_leaves_is_recorded(tmp_path: Path) -> None:
    """Local work for a client that leaves is recorded as far as it came."""
    ledger = tmp_path / "ledger.sqlite"
    fake = FakeWorker()
    fake.pause_after = 3
    async with open_gateway(ledger=ledger) as gateway, open_worker(gateway.address, fake):
        await gateway.wait_state("ready")
        asked = gateway.start()
        await asked.wait_text()
        asked.scope.cancel()
        await asked.over.wait()
        row = await Shop(gateway, (), ledger).row()
        assert 1 <= row.completion_tokens <= 3


async def test_what_cannot_be_recorded_is_not_sent(tmp_path: Path) -> None:
    """A ledger that cannot be written refuses, and recovers by itself."""
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake) as shop:
        with closing(sqlite3.connect(shop.ledger)) as db:
            db.execute("ALTER TABLE reservations RENAME TO elsewhere")
            refused = await shop.ask()
            assert refused.error is not None
            assert refused.error.status == 503
            assert not fake.requests
            db.execute("ALTER TABLE elsewhere RENAME TO reservations")
        assert (await shop.ask()).error is None
        assert (await shop.row()).cost == COST


async def test_a_locked_ledger_loses_no_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the file while a turn ends: its cost is written later. Requests that
    come meanwhile are refused with the reason, without the path; clients that leave hold no memory.
    """
    monkeypatch.setattr("gateway.store.ledger.BUSY_S", 0.05)
    fake = FakeProvider(usage=COUNTED)
    limits = LimitsConfig(daily=units(10_000))
    async with open_shop(tmp_path, fake, limits=limits) as shop:
        spending, feed = shop.gateway.services.spending, shop.gateway.services.feed
        assert (await shop.ask()).error is None
        with closing(sqlite3.connect(shop.ledger, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            await wait_until(lambda: "another program holds it" in spending.stuck_for)
            refused = [await shop.ask() for _ in range(3)]
            waiting = [shop.gateway.start(**{**ASK, "stream": False}) for _ in range(30)]
            await wait_until(lambda: bool(spending.figures().reserved.get("p0")))
            for one in waiting:
                one.scope.cancel()
                await one.over.wait()
            assert len(spending._writer._reservations.ends) <= 1
            db.execute("ROLLBACK")
        await wait_until(lambda: not spending.stuck_for)
        assert {one.error.status for one in refused if one.error} == {503}
        assert refused[0].error is not None
        assert "database is locked: another program holds it" in refused[0].error.message
        assert str(tmp_path) not in refused[0].error.message
        assert (feed.counts["store stuck"], feed.counts["store well"]) == (1, 1)
        row = await shop.row()
        assert (row.requests, row.cost, len(fake.requests)) == (1, COST, 1)


async def test_without_a_ledger_nothing_that_costs_starts(tmp_path: Path) -> None:
    """Local models do: their usage is not recorded then, and the log says so."""
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "ledger.sqlite"
    tables = {"cloud": ProviderConfig(base_url="http://127.0.0.1:1/v1")}
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True):
        async with open_gateway(providers=tables, ledger=nowhere):
            pass
    async with open_gateway(ledger=nowhere) as gateway, open_worker(gateway.address):
        await gateway.wait_state("ready")
        assert (await gateway.ask()).error is None
