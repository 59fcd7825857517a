"""Limits of conversations hold under concurrency, over several gateways, and after a kill."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from config import AllLimitsConfig, ConversationLimitsConfig, KeyConfig
from gateway.spending.conversation_limits import limit_error
from gateway.store import (
    ConversationLimits,
    HoldEnd,
    LedgerStore,
    OfConversations,
    SumHold,
    SumReached,
    read_report,
)
from tests.fakes.whole_gateway import WholeGateway, whole_gateway

MOST = ConversationLimits(tokens=1000, cost=500, turns=10, seconds=60)


def open_store(path: Path) -> LedgerStore:
    return LedgerStore(path, "USD")


def try_hold(
    store: LedgerStore, number: int, now: float = 100.0, **wanted: Any
) -> SumReached | None:
    hold = SumHold(number, "k", "talk", now, MOST, **wanted)
    store.write((), (), (), OfConversations(holds=[hold]))
    return store.reached.get(number)


def end_hold(store: LedgerStore, number: int, tokens: int = 0, cost: int = 0) -> None:
    store.write((), (), (), OfConversations(ends=[HoldEnd(number, tokens, cost)]))


def test_two_processes_share_a_limit(tmp_path: Path) -> None:
    one, other = open_store(tmp_path / "l.sqlite"), open_store(tmp_path / "l.sqlite")
    assert try_hold(one, 1, tokens=600) is None
    reached = try_hold(other, 1, tokens=600)
    assert reached == SumReached("tokens", 1000, 0, 600, 600)
    assert reached.is_for_others
    end_hold(one, 1, tokens=300)
    assert try_hold(other, 2, tokens=600) is None
    end_hold(other, 2, tokens=600)
    reached = try_hold(one, 3, tokens=101)
    assert reached is not None
    assert not reached.is_for_others
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("wanted", "what"),
    [({"turns": 1}, "turns"), ({"cost": 60}, "cost"), ({"tokens": 101}, "tokens")],
)
def test_what_is_used_up_is_named(tmp_path: Path, wanted: dict[str, int], what: str) -> None:
    store = open_store(tmp_path / "l.sqlite")
    number = 0
    while (reached := try_hold(store, number, **wanted)) is None:
        end_hold(store, number, wanted.get("tokens", 0), wanted.get("cost", 0))
        number += 1
    assert reached.what == what
    assert reached.used <= reached.limit
    assert number == {"turns": 10, "cost": 8, "tokens": 9}[what]
    store.close()


def test_the_time_of_a_conversation_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path / "l.sqlite")
    assert try_hold(store, 1, now=100.0, turns=1) is None
    assert try_hold(store, 2, now=159.0, turns=1) is None
    reached = try_hold(store, 3, now=161.0, turns=1)
    assert reached is not None
    assert reached.what == "seconds"
    assert "1.0 minutes" in limit_error(reached, "USD").message
    store.close()


def test_what_a_killed_process_held_counts_as_used(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from gateway.store import *\n"
        "store = LedgerStore(Path(sys.argv[1]), 'USD')\n"
        "most = ConversationLimits(tokens=1000)\n"
        "held = [SumHold(at, 'k', 'talk', 100.0, most, tokens=100) for at in range(7)]\n"
        "store.write((), (), (), OfConversations(holds=held))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    store = open_store(path)
    ended = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    store.look(())
    reached = try_hold(store, 1, tokens=301)
    assert reached == SumReached("tokens", 1000, 700, 0, 301)
    assert try_hold(store, 2, tokens=300) is None
    store.close()


def limits(**values: Any) -> AllLimitsConfig:
    return AllLimitsConfig(conversation=ConversationLimitsConfig(**values))


def configure(whole: WholeGateway, **tables: Any) -> None:
    services = whole.gateway.services
    services.conversation_tracker.reconfigure(msgspec.structs.replace(services.config, **tables))


async def ask_all(whole: WholeGateway, num: int, **fields: Any) -> list[tuple[int, str]]:
    """The status and the code of `num` requests of one conversation that come together."""
    found: list[tuple[int, str]] = []

    async def ask_one(number: int) -> None:
        given = {
            "model": "alpha",
            "messages": [{"role": "user", "content": f"say {number}"}],
            "session_id": "talk",
            "max_tokens": 4,
            **fields,
        }
        reply = await whole.post("/v1/chat/completions", **given)
        body = msgspec.json.decode(reply.body)
        found.append((reply.status, body.get("error", {}).get("code") or ""))

    async with trio.open_nursery() as nursery:
        for number in range(num):
            nursery.start_soon(ask_one, number)
    return found


async def test_turns_hold_under_64_requests_at_two_gateways(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    async with whole_gateway(ledger=ledger) as one, whole_gateway(ledger=ledger) as other:
        found: list[tuple[int, str]] = []
        for whole in (one, other):
            configure(whole, limits=limits(turns=10))
        async with trio.open_nursery() as nursery:
            for whole in (one, other):

                async def ask(whole: WholeGateway = whole) -> None:
                    found.extend(await ask_all(whole, 32))

                nursery.start_soon(ask)
        assert found.count((200, "")) == 10
        assert found.count((422, "conversation_limit_reached")) == 54


async def test_tokens_hold_under_64_requests(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    async with whole_gateway(ledger=ledger) as whole:
        configure(whole, limits=limits(tokens=1500))
        found = await ask_all(whole, 64)
        assert {status for status, _ in found} <= {200, 422, 429}
        while found[-1][0] != 422 and len(found) < 300:
            found += await ask_all(whole, 1)
        (row,) = whole.gateway.services.conversation_tracker.book.rows("talk")
        assert found[-1] == (422, "conversation_limit_reached")
        assert 700 < row.prompt_tokens + row.completion_tokens <= 1500
        # Another conversation has its own.
        assert await ask_all(whole, 1, session_id="other") == [(200, "")]
        recent = whole.gateway.services.feed.recent
        events = [msgspec.json.decode(one.json)["event"] for one in recent]
        assert "conversation limit" in events


async def test_a_key_has_its_own_limits(tmp_path: Path) -> None:
    of_key = ConversationLimitsConfig(turns=2)
    keys = (KeyConfig(name="", hash="sha256:" + "0" * 64, conversation=of_key),)
    async with whole_gateway(ledger=tmp_path / "ledger.sqlite") as whole:
        configure(whole, limits=limits(turns=50), keys=keys)
        found = [await ask_all(whole, 1) for _ in range(3)]
        assert [one[0][0] for one in found] == [200, 200, 422]


async def test_usage_is_shown_by_conversation(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    async with whole_gateway(ledger=ledger) as whole:
        for name in ("a", "a", "b"):
            await ask_all(whole, 1, session_id=name)
    report = read_report(ledger, ("conversation",), "2026-01-01")
    assert report is not None
    assert [(row.group, row.requests) for row in report.rows] == [(("a",), 2), (("b",), 1)]
    assert report.rows[0].prompt_tokens > 0
