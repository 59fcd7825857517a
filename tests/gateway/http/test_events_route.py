"""GET /events over plain ASGI, in virtual time."""

import dataclasses

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import KeyConfig, hash_api_key
from gateway.http.events_route import HEARTBEAT_S
from gateway.http.routes import edge_app
from gateway.telemetry.event_feed import MAX_WAITING, EventFeed
from gateway.telemetry.fleet_events import FallbackOff, WorkerLost
from tests.fakes.asgi import Exchange, Script, scripted_edge

REMOTE = ("192.0.2.7", 40_000)
KEYS = (
    KeyConfig(name="agent", hash=hash_api_key("herma-sk-agent")),
    KeyConfig(name="boss", hash=hash_api_key("herma-sk-boss"), admin=True),
)
TOLD = (
    b'id: 1\nevent: fallback off\ndata: {"event":"fallback off","model":"alpha",'
    b'"recovery_probes":3,"time":"1970-01-01T00:00:00.000+00:00"}\n\n'
    b'id: 2\nevent: worker lost\ndata: {"event":"worker lost","worker":"w1",'
    b'"reason":"silent","time":"1970-01-01T00:00:00.000+00:00"}\n\n'
)


def listening(feed: EventFeed, *keys: KeyConfig, **fields: object) -> Exchange:
    edge = dataclasses.replace(scripted_edge(Script(), keys=keys), listen=feed.listen)
    return Exchange(edge_app(edge), method="GET", path="/events", **fields)  # type: ignore[arg-type]


async def test_events_come_as_they_happen(autojump_clock: MockClock) -> None:
    """One server-sent event each, with number and kind; comments while nothing happens."""
    feed, start = EventFeed(unix_time=lambda: 0.0), trio.current_time()
    async with trio.open_nursery() as nursery:
        exchange = listening(feed)
        nursery.start_soon(exchange.run)
        await wait_all_tasks_blocked()
        feed.publish(FallbackOff("alpha", 3))
        feed.publish(WorkerLost("w1", "silent"))
        await trio.sleep(HEARTBEAT_S + 1)
        exchange.disconnect()
    bodies = [(at - start, message["body"]) for at, message in exchange.writes if "body" in message]
    assert bodies == [
        (0.0, b": listening\n\n"),
        (0.0, TOLD),
        (HEARTBEAT_S, b": alive\n\n"),
    ]
    assert exchange.head["content-type"].startswith("text/event-stream")
    assert not feed._listeners


async def test_a_listener_that_does_not_read_keeps_nobody_waiting(
    autojump_clock: MockClock,
) -> None:
    """A listener that does not read delays no other, and learns how many events it has missed."""
    feed = EventFeed()
    async with trio.open_nursery() as nursery:
        exchange = listening(feed)
        nursery.start_soon(exchange.run)
        await wait_all_tasks_blocked()
        exchange.reads = False
        for number in range(MAX_WAITING + 10):
            feed.publish(WorkerLost(f"w{number}", "gone"))
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        exchange.resume_reading()
        await wait_all_tasks_blocked()
        exchange.disconnect()
    assert b'event: lost\ndata: {"count":' in exchange.content
    assert b"w%d" % (MAX_WAITING + 9) in exchange.content


async def test_only_admins_may_listen() -> None:
    """Only admins may listen, as for the metrics."""
    for headers, status in (
        ((), 401),
        (((b"authorization", b"Bearer herma-sk-agent"),), 403),
        (((b"authorization", b"Bearer herma-sk-boss"),), 200),
    ):
        exchange = listening(EventFeed(), *KEYS, client=REMOTE, headers=headers)
        exchange.disconnect()
        assert (await exchange.run()).status == status
