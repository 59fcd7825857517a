"""Events on their way to the log, the counters and listeners."""

import json
import logging

import pytest

from gateway.api.errors import ApiError
from gateway.telemetry.event_feed import LOGGER, MAX_LISTENERS, MAX_WAITING, EventFeed
from gateway.telemetry.fleet_events import EVENT_KINDS, BreakerOpen, FleetEvent, WorkerLost, kind_of


def test_an_event_is_counted_and_logged_as_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A JSON object with its kind, its fields and the time."""
    feed = EventFeed(unix_time=lambda: 1_800_000_000.25)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        feed.publish(WorkerLost("w1", "silent\nfor 1.2 s"))
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert json.loads(record.getMessage()) == {
        "event": "worker lost",
        "worker": "w1",
        "reason": "silent\nfor 1.2 s",
        "time": "2027-01-15T08:00:00.250+00:00",
    }
    assert feed.counts["worker lost"] == 1
    assert sum(feed.counts.values()) == 1
    assert set(feed.counts) == set(EVENT_KINDS)


def test_one_of_several_processes_says_which_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """All of them tell what they see on the same terminal."""
    with caplog.at_level(logging.INFO, logger=LOGGER):
        EventFeed(process="1").publish(WorkerLost("w1", "gone"))
    assert json.loads(caplog.messages[0])["process"] == "1"


def test_every_kind_has_its_own_name() -> None:
    """Every kind of event has its own name, which is a label and the name of a server-sent event:
    words without line breaks.
    """
    assert len(set(EVENT_KINDS)) == len(EVENT_KINDS) == len(FleetEvent.__args__)
    assert all(kind.replace(" ", "").isalpha() for kind in EVENT_KINDS)
    assert kind_of(BreakerOpen("worker", "w1", 5.0, "it failed")) == "breaker open"


async def test_a_slow_listener_loses_the_oldest_and_learns_how_many() -> None:
    """A slow listener loses the oldest events and learns how many; nothing waits for it."""
    feed = EventFeed()
    with feed.listen() as listener:
        for number in range(MAX_WAITING + 3):
            feed.publish(WorkerLost(f"w{number}", "gone"))
        await listener.wait()
        lost, events = listener.take()
        assert (lost, len(events)) == (3, MAX_WAITING)
        assert [told.number for told in events] == list(range(4, MAX_WAITING + 4))
        feed.publish(WorkerLost("last", "gone"))
        assert listener.take()[0] == 0
    assert not feed._listeners
    feed.publish(WorkerLost("unheard", "gone"))


def test_listeners_are_bounded() -> None:
    """One too many is told to come later."""
    feed, opened = EventFeed(), []
    for _ in range(MAX_LISTENERS):
        opened.append(feed.listen())
        opened[-1].__enter__()
    with pytest.raises(ApiError) as caught, feed.listen():
        pass
    assert caught.value.status == 429
    for listening in opened:
        listening.__exit__(None, None, None)
    assert not feed._listeners
