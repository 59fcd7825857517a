"""The words of alerts and the bodies that receivers get."""

import json

import pytest

from gateway.alerts import alert_of
from gateway.alerts.alert import Alert
from gateway.alerts.forms import as_json, message_of
from gateway.telemetry import (
    BreakerOpen,
    EngineFault,
    EventFeed,
    FallbackOff,
    FallbackOn,
    FleetEvent,
    LimitReached,
    PoisonedRequest,
    Resumed,
    SpeedBack,
    SpeedLost,
    SpendingThreshold,
    WorkerBack,
    WorkerLost,
)


def published(event: FleetEvent) -> Alert | None:
    feed = EventFeed(unix_time=lambda: 1_800_000_000.0, process="0")
    with feed.listen() as listener:
        feed.publish(event)
        (one,) = listener.take()[1]
    return alert_of(one, "ab12")


@pytest.mark.parametrize(
    ("event", "kind", "level", "words"),
    [
        (FallbackOn("m", ("cloud",), "no worker"), "fallback", "critical", "m runs in the cloud"),
        (FallbackOff("m", 3), "fallback", "good", "m runs on its workers again"),
        (
            SpendingThreshold("key", "ann", "daily", 80),
            "spending",
            "warning",
            "key ann: 80 % spent",
        ),
        (LimitReached("key", "ann", "daily", "noon"), "spending", "critical", "limit reached"),
        (WorkerLost("w1", "silent"), "worker", "warning", "worker w1 lost"),
        (WorkerBack("w1", 2, ("m",), "cpu"), "worker", "good", "worker w1 is back"),
        (
            SpeedLost("w1", ("answers at 40.0 tokens/s",), 3),
            "speed loss",
            "warning",
            "worker w1 is slower",
        ),
        (SpeedBack("w1"), "speed loss", "good", "worker w1 is fast again"),
        (EngineFault("w1", 1, "killed", 137, False), "worker", "warning", "engine of w1 died"),
        (EngineFault("w1", 9, "crashed", 127, True), "crash loop", "critical", "has given up"),
        (BreakerOpen("provider", "cloud", 30, "HTTP 500"), "provider", "warning", "cloud fails"),
        (PoisonedRequest("r", "m", "ann", 3), "request", "warning", "ends engines of m"),
    ],
)
def test_events_become_alerts(event: FleetEvent, kind: str, level: str, words: str) -> None:
    alert = published(event)
    assert alert is not None
    assert (alert.id, alert.kind, alert.level) == ("ab12-1", kind, level)
    assert words in alert.title
    assert json.loads(as_json(alert))["event"]["time"] == "2027-01-15T08:00:00.000+00:00"


@pytest.mark.parametrize(
    "event",
    [
        Resumed("r", "m", "w1", "lost", 5),
        BreakerOpen("worker", "w1", 30, "slow"),
    ],
)
def test_what_mends_itself_is_no_alert(event: FleetEvent) -> None:
    assert published(event) is None


def test_each_form_has_its_words() -> None:
    alert = Alert("r-1", "worker", "critical", "a < b", "grüße & more", b"")
    headers, body = message_of(alert, "ntfy")
    assert dict(headers) == {b"title": b"a < b", b"priority": b"5", b"tags": b"rotating_light"}
    assert body == "grüße & more".encode()
    headers, body = message_of(alert, "slack")
    assert json.loads(body) == {"text": ":rotating_light: *a &lt; b*\ngrüße &amp; more"}
    _, body = message_of(alert, "json")
    assert json.loads(body) == {
        "id": "r-1",
        "kind": "worker",
        "level": "critical",
        "title": "a < b",
        "text": "grüße & more",
        "event": None,
    }
