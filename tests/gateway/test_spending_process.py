"""Gateway processes that are killed while they spend, alone and with another on the same ledger."""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
import trio

from gateway.spending.prices import show_amount
from gateway.store import LedgerRow, read_report
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import wait_until
from tests.fakes.worker import PATIENCE_S
from tests.gateway.store.test_common_limits import SERVER, Server
from tests.gateway.test_app import gateway_argv, read_line

CLIENTS = 40
WORTH = 10
MAX_TOKENS = 50
BODY = {
    "model": "alpha",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": MAX_TOKENS,
    "stream": True,
}
WORST = len(json.dumps(BODY, separators=(",", ":"))) + 512 + MAX_TOKENS
"""Micro-units: a token of either kind costs one."""

USED = {"prompt_tokens": WORST - MAX_TOKENS, "completion_tokens": MAX_TOKENS}

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers{number}"
drain_s = 5.0

[ledger]
path = "{folder}/ledger.sqlite"
currency = "EUR"

[[models]]
name = "alpha"
fallback = [{{ provider = "cloud", model = "big" }}]

[providers.cloud]
base_url = "{provider}"
price = {{ input = 1.0, output = 1.0 }}
limits = {{ daily = {limit} }}
"""


def config_text(folder: Path, fake: FakeProvider, limit: str, number: int = 0) -> str:
    return CONFIG.format(folder=folder, number=number, provider=fake.base_url, limit=limit)


@asynccontextmanager
async def gateway_process(config: Path) -> AsyncIterator[tuple[trio.Process, str]]:
    """A gateway and its URL; killed at the end of the block if it still runs."""
    process = await trio.lowlevel.open_process(gateway_argv(config), stdout=PIPE)
    assert process.stdout is not None
    async with process.stdout:
        try:
            yield process, (await read_line(process.stdout)).split()[1]
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def ask_all(url: str, statuses: list[int]) -> None:
    """All clients at once; `statuses` gets one per answer that came whole."""
    timeout, limits = httpx.Timeout(PATIENCE_S), httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(trust_env=False, timeout=timeout, limits=limits) as client:

        async def ask() -> None:
            try:
                reply = await client.post(f"{url}/chat/completions", json=BODY)
            except httpx.HTTPError:
                return
            statuses.append(reply.status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(ask)


def total_of(folder: Path) -> LedgerRow:
    report = read_report(folder / "ledger.sqlite", (), "2000-01-01")
    assert report is not None
    assert report.total is not None
    return report.total


def reserved_by(slot: int, folder: Path) -> int:
    """How many requests of the gateway that came as number `slot` are reserved."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        sql = "SELECT COUNT(*) FROM reservations WHERE id >> 40 = ?"
        return int(db.execute(sql, (slot,)).fetchone()[0])


def usage_command(config: Path, *more: str) -> str:
    argv = [sys.executable, "-m", "herma", "usage", "--config", str(config), *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_kill_in_the_middle_exceeds_no_limit(tmp_path: Path) -> None:
    """40 requests against a limit worth 10, kill -9 while they are out, 40 more after the restart:
    the provider has never seen more than 10 of them, and the ledger knows at least what it saw.
    """
    config = tmp_path / "herma.toml"
    statuses: list[int] = []
    with trio.fail_after(5 * PATIENCE_S):
        async with open_provider(FakeProvider(usage=USED)) as fake:
            limit = WORTH * WORST / 1e6
            config.write_text(
                CONFIG.format(
                    folder=tmp_path, number=0, provider=fake.base_url, limit=f"{limit:.6f}"
                )
            )
            answered = trio.Event()
            slow: list[int] = []

            def hold_most() -> None:
                """Let four answers end; the others are out when the gateway dies."""
                slow.append(1)
                fake.linger_s = 0.0 if len(slow) <= 4 else 60.0
                fake.ends = len(slow) <= 4
                if len(fake.requests) >= WORTH:
                    answered.set()

            fake.before_first = hold_most
            async with gateway_process(config) as (process, url), trio.open_nursery() as nursery:
                nursery.start_soon(ask_all, url, statuses)
                await answered.wait()
                process.kill()
                await process.wait()
            assert len(fake.requests) == WORTH
            fake.before_first, fake.linger_s, fake.ends = (lambda: None), 0.0, True
            killed = total_of(tmp_path)
            assert killed.cost + killed.unsettled_cost == WORTH * WORST
            async with gateway_process(config) as (process, url):
                after: list[int] = []
                await ask_all(url, after)
                assert after == [429] * CLIENTS
                text = await trio.to_thread.run_sync(usage_command, config)
                process.terminate()
                assert await process.wait() == 0
            assert len(fake.requests) == WORTH
    assert killed.requests == WORTH
    assert killed.unsettled >= WORTH - 4
    assert "unsettled" in text
    assert show_amount(WORTH * WORST, 4) in text
    assert (tmp_path / "ledger.sqlite").stat().st_mode & 0o077 == 0


async def test_two_gateways_share_a_limit(tmp_path: Path) -> None:
    """40 requests to each against a limit worth 10, one killed while they are out: the provider
    sees 10 of them, and what the dead one had reserved is spent, which the other soon knows.
    """
    configs = [tmp_path / f"herma{number}.toml" for number in range(2)]
    async with open_provider(FakeProvider(usage=USED)) as fake:
        fake.ends, fake.linger_s = False, 60.0
        limit = f"{WORTH * WORST / 1e6:.6f}"
        for number, config in enumerate(configs):
            config.write_text(config_text(tmp_path, fake, limit, number))
        with trio.fail_after(5 * PATIENCE_S):
            async with (
                gateway_process(configs[0]) as (killed, first_url),
                gateway_process(configs[1]) as (_, url),
                trio.open_nursery() as clients,
            ):
                refused: list[int] = []
                clients.start_soon(ask_all, first_url, refused)
                clients.start_soon(ask_all, url, refused)
                await wait_until(lambda: len(refused) + len(fake.requests) == 2 * CLIENTS)
                assert refused == [429] * (2 * CLIENTS - WORTH)
                killed.kill()
                await killed.wait()
                await wait_until(lambda: reserved_by(0, tmp_path) == 0)
                assert len(fake.requests) == WORTH
                clients.cancel_scope.cancel()
    total = total_of(tmp_path)
    assert total.cost + total.unsettled_cost == WORTH * WORST


@pytest.mark.skipif(SERVER is None, reason="no redis-server is installed")
async def test_gateways_of_two_hosts_share_a_limit(tmp_path: Path) -> None:
    """Gateways of two hosts share a limit by a Redis server; without the server nothing more is
    sent.
    """
    server = await trio.to_thread.run_sync(Server, tmp_path)
    with ExitStack() as at_end:
        at_end.callback(server.stop)
        await _spend_on_two_hosts(tmp_path, server)


async def _spend_on_two_hosts(tmp_path: Path, server: Server) -> None:
    configs = [tmp_path / f"host{number}" / "herma.toml" for number in range(2)]
    async with open_provider(FakeProvider(usage=USED)) as fake:
        for config in configs:
            config.parent.mkdir()
            text = config_text(config.parent, fake, f"{WORTH * WORST / 1e6:.6f}")
            config.write_text(text.replace("[ledger]", f'[ledger]\nshared = "{server.url}"'))
        with trio.fail_after(5 * PATIENCE_S):
            async with (
                gateway_process(configs[0]) as (_, first_url),
                gateway_process(configs[1]) as (_, second_url),
            ):
                statuses: list[int] = []
                async with trio.open_nursery() as clients:
                    clients.start_soon(ask_all, first_url, statuses)
                    clients.start_soon(ask_all, second_url, statuses)
                assert Counter(statuses) == {200: WORTH, 429: 2 * CLIENTS - WORTH}
                assert len(fake.requests) == WORTH
                await trio.to_thread.run_sync(server.stop)
                statuses.clear()
                await ask_all(first_url, statuses)
                assert set(statuses) <= {429, 503}
                assert len(fake.requests) == WORTH
    reports = [read_report(one.with_name("ledger.sqlite"), (), "2000-01-01") for one in configs]
    totals = [report.total for report in reports if report is not None and report.total is not None]
    assert sum(total.cost + total.unsettled_cost for total in totals) == WORTH * WORST


@pytest.mark.skipif(SERVER is None, reason="no redis-server is installed")
async def test_a_client_is_told_what_ails_the_server(tmp_path: Path) -> None:
    """One trouble after the other, and the answers come again behind each."""
    server = await trio.to_thread.run_sync(Server, tmp_path)
    config = tmp_path / "herma.toml"
    troubles: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
        (
            "is out of memory",
            partial(server.tell, "CONFIG SET maxmemory 1"),
            partial(server.tell, "CONFIG SET maxmemory 0"),
        ),
        ("is stopped or busy", server.freeze, partial(server.freeze, is_frozen=False)),
        ("cannot be reached", server.stop, server.start),
    ]
    with ExitStack() as at_end:
        at_end.callback(server.stop)
        async with open_provider(FakeProvider(usage=USED)) as fake:
            text = config_text(tmp_path, fake, "100.0")
            config.write_text(text.replace("[ledger]", f'[ledger]\nshared = "{server.url}"'))
            with trio.fail_after(5 * PATIENCE_S):
                async with gateway_process(config) as (_, url):
                    for why, begin, end in troubles:
                        await _until_said(url, 200, "")
                        await trio.to_thread.run_sync(begin)
                        await _until_said(url, 503, why)
                        await trio.to_thread.run_sync(end)
                    await _until_said(url, 200, "")


async def _until_said(url: str, status: int, text: str) -> None:
    """Ask until the answer is this."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        while True:
            reply = await client.post(f"{url}/chat/completions", json={**BODY, "stream": False})
            if reply.status_code == status and text in reply.text:
                return
            await trio.sleep(0.1)


async def test_the_ledger_equals_what_clients_were_told(tmp_path: Path) -> None:
    """Over completed requests, to the token; also in what the command prints for programs."""
    config = tmp_path / "herma.toml"
    with trio.fail_after(5 * PATIENCE_S):
        async with open_provider(FakeProvider(usage=USED)) as fake:
            config.write_text(config_text(tmp_path, fake, "100.0"))
            assert "no usage is recorded yet" in usage_command(config)
            statuses: list[int] = []
            async with gateway_process(config) as (process, url):
                await ask_all(url, statuses)
                async with httpx.AsyncClient(trust_env=False) as client:
                    root = url.removesuffix("/v1")
                    metrics = (await client.get(f"{root}/metrics")).text
                process.terminate()
                assert await process.wait() == 0
    assert statuses == [200] * CLIENTS
    told = json.loads(usage_command(config, "--by", "provider", "--json"))
    (row,) = told["rows"]
    assert row["provider"] == "cloud"
    assert row["requests"] == CLIENTS
    assert row["prompt_tokens"] == CLIENTS * USED["prompt_tokens"]
    assert row["completion_tokens"] == CLIENTS * USED["completion_tokens"]
    spent = CLIENTS * WORST / 1e6
    assert row["cost"] == f"{spent:.6f}"
    assert told["currency"] == "EUR"
    assert told["limits"] == [
        {"provider": "cloud", "period": "daily", "spent": f"{spent:.6f}", "limit": "100.000000"}
    ]
    (line,) = [line for line in metrics.splitlines() if line.startswith("herma_spend_total{")]
    assert 'provider="cloud"' in line
    assert abs(float(line.split()[-1]) - spent) < 1e-9
