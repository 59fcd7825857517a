"""The operators' page, its data and its stream, on a whole gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import pytest
import trio

from config import KeyConfig, hash_api_key
from gateway.app import edge_of
from gateway.dashboard import DashboardState, Explanation
from gateway.http.routes import edge_app
from gateway.telemetry import WorkerLost
from tests.fakes.asgi import Exchange
from tests.fakes.running_gateway import RunningGateway, open_gateway
from tests.fakes.served import RawClient, Reply, ask, connected
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import PATIENCE_S

HERE = {"host": "127.0.0.1:8080"}
REMOTE = ("192.0.2.7", 40_000)
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"
KEYS = (
    KeyConfig(name="agent", hash=hash_api_key("herma-sk-agent")),
    KeyConfig(name="boss", hash=hash_api_key("herma-sk-boss"), admin=True),
)


async def get(whole: WholeGateway, path: str, **headers: str) -> Reply:
    return await ask(whole.url, "GET", path, **{**HERE, **headers})


async def state_of(whole: WholeGateway) -> DashboardState:
    reply = await get(whole, "/dashboard/state")
    assert reply.status == 200, reply
    return msgspec.json.decode(reply.body, type=DashboardState)


class PageStream:
    """The events of one page's stream."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._rest = b""
        self.seen: list[tuple[str, Any]] = []

    async def next(self, name: str) -> Any:
        """The data of the next event of that name."""
        with trio.fail_after(PATIENCE_S):
            while True:
                while b"\n\n" not in self._rest:
                    event = await self._client.event()
                    self._rest += bytes(event.data) if isinstance(event, h11.Data) else b""
                block, _, self._rest = self._rest.partition(b"\n\n")
                head, data = block.split(b"\n", 1)
                told = msgspec.json.decode(data.removeprefix(b"data: "))
                self.seen.append((head.removeprefix(b"event: ").decode(), told))
                if self.seen[-1][0] == name:
                    return told


@asynccontextmanager
async def stream_of(whole: WholeGateway) -> AsyncIterator[PageStream]:
    async with connected(whole.url) as client:
        client._parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
        client._parser.send(h11.EndOfMessage())
        await client.send(b"GET /dashboard/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        yield PageStream(client)


async def test_a_request_is_in_the_overview_and_explained() -> None:
    """A request is explained by the id that its client got, with the worker, the reason and the
    times.
    """
    async with whole_gateway() as whole:
        hello = [{"role": "user", "content": "Hi"}]
        answer = await whole.post("/v1/chat/completions", model="alpha", messages=hello)
        shown = await state_of(whole)
        (row,) = shown.overview.recent
        assert (row.id, row.model, row.server) == (answer.json["id"], "alpha", "w1")
        assert (row.api, row.phase, row.status) == ("chat", "ended", 200)
        assert row.output_tokens == answer.json["usage"]["completion_tokens"]
        assert shown.overview.requests == ()
        assert [worker.name for worker in shown.overview.workers] == ["w1"]
        assert shown.events[0].kind == "worker ready"
        reply = await get(whole, f"/dashboard/requests/{row.id}")
        told = msgspec.json.decode(reply.body, type=Explanation)
        assert told.request == row
        (attempt,) = told.attempts
        assert attempt.candidates[0].is_chosen
        assert [span.stage for span in told.spans][-1] == "decode"
        assert (await get(whole, "/dashboard/requests/nothing")).status == 404


async def test_the_stream_brings_the_state_and_each_event_once() -> None:
    """A page that opens gets what was; afterwards events as they happen, and the newest state."""
    async with whole_gateway() as whole, stream_of(whole) as page:
        assert [event["kind"] for event in (await page.next("log"))["events"]] == ["worker ready"]
        first = await page.next("state")
        assert first["workers"][0]["name"] == "w1"
        feed = whole.gateway.services.feed
        for number in range(50):
            feed.publish(WorkerLost(f"g{number}", "silent"))
        seen: list[int] = []
        while len(seen) < 50:
            seen += [event["number"] for event in (await page.next("log"))["events"]]
        assert seen == list(range(2, 52))
        while (await page.next("state"))["unix_time"] == first["unix_time"]:
            pass


async def test_a_page_that_reads_slowly_gets_the_newest_state_and_all_events() -> None:
    """States that it could not take are left out; the log has no hole."""
    async with open_gateway() as gateway, trio.open_nursery() as nursery:
        exchange = Exchange(
            edge_app(edge_of(gateway.services)),
            method="GET",
            path="/dashboard/stream",
            headers=((b"host", b"localhost"),),
        )
        nursery.start_soon(exchange.run)
        await _until(lambda: len(exchange.writes) > 1)
        exchange.reads = False
        for number in range(600):
            gateway.services.feed.publish(WorkerLost(f"g{number}", "silent"))
            if number % 100 == 0:
                await trio.sleep(0.01)
        exchange.resume_reading()
        numbers: list[int] = []
        await _until(lambda: sum(len(log["events"]) for log in _told(exchange, "log")) >= 600)
        for log in _told(exchange, "log"):
            numbers += [event["number"] for event in log["events"]]
        assert numbers == list(range(1, 601))
        assert all(log["num_lost"] == 0 for log in _told(exchange, "log"))
        exchange.disconnect()


def _told(exchange: Exchange, name: str) -> list[Any]:
    """The data of all events of that name so far."""
    blocks = [block.split(b"\n", 1) for block in exchange.content.split(b"\n\n") if block]
    return [
        msgspec.json.decode(data.removeprefix(b"data: "))
        for head, data in blocks
        if head == b"event: " + name.encode()
    ]


async def _until(holds: Any) -> None:
    with trio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody announces what is awaited
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("client", "host", "key", "status"),
    [
        (None, b"127.0.0.1:8080", None, 200),
        (None, b"[::1]:8080", None, 200),
        (None, b"localhost", None, 200),
        (None, b"rebound.example", None, 401),
        (None, b"rebound.example", b"Bearer herma-sk-boss", 200),
        (REMOTE, b"127.0.0.1:8080", None, 401),
        (REMOTE, b"gateway:8080", b"Bearer herma-sk-agent", 403),
        (REMOTE, b"gateway:8080", b"Bearer herma-sk-boss", 200),
    ],
)
async def test_data_is_for_this_machine_and_for_admins(
    client: Any, host: bytes, key: bytes | None, status: int
) -> None:
    """A web page whose name was pointed to this machine is neither."""
    async with open_gateway(keys=KEYS) as gateway:
        assert await _status(gateway, client, host, key) == status


async def test_without_keys_a_foreign_name_is_no_way_in() -> None:
    """There is no key that could tell an operator from a web page elsewhere."""
    async with open_gateway() as gateway:
        assert await _status(gateway, None, b"rebound.example", None) == 403
        assert await _status(gateway, None, b"localhost:8080", None) == 200
        assert await _status(gateway, REMOTE, b"localhost:8080", None) == 401


async def _status(gateway: RunningGateway, client: Any, host: bytes, key: bytes | None) -> int:
    headers = [(b"host", host), *([(b"authorization", key)] if key else [])]
    app = edge_app(edge_of(gateway.services))
    fields: dict[str, Any] = {} if client is None else {"client": client}
    for path in ("/dashboard/state", "/dashboard/requests/x"):
        exchange = Exchange(app, method="GET", path=path, headers=headers, **fields)
        await exchange.run()
        if path.endswith("state"):
            status = exchange.status
        else:
            assert exchange.status == (404 if status == 200 else status)
    return status


async def test_browsers_get_the_page_and_other_clients_what_they_got_before() -> None:
    """The page holds no data, so that it can ask a remote browser for its key."""
    async with open_gateway(keys=KEYS) as gateway:
        app = edge_app(edge_of(gateway.services))

        async def get_root(method: str, accept: bytes, client: Any = REMOTE) -> Exchange:
            headers = [(b"host", b"gateway:8080"), (b"accept", accept)]
            exchange = Exchange(app, method=method, path="/", headers=headers, client=client)
            return await exchange.run()

        page = await get_root("GET", BROWSER.encode())
        assert page.status == 200
        assert page.head["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.head["content-security-policy"]
        assert page.content.startswith(b"<!doctype html>")
        for method, accept in (
            ("GET", b"*/*"),
            ("GET", b"application/json"),
            ("POST", b"text/html"),
        ):
            other = await get_root(method, accept)
            said = "There is nothing at / for programs: the API is below /v1."
            assert (other.status, other.json["error"]["message"]) == (404, said)
