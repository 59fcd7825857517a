"""Alerts over real HTTP, commands, and packets on loopback."""

import json
import socket as sockets
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.types import Receive, Scope, Send

from config import AlertConfig, Config, GatewayConfig, HostConfig
from gateway.alerts import Alerting
from gateway.alerts.host_actions import magic_packet
from gateway.spending import LimitWindow, SpendingFigures
from gateway.spending.limits import Account
from gateway.telemetry import EventFeed, FallbackOff, FallbackOn, WorkerLost, WorkerReady
from protocol.errors import ConfigError
from tests.fakes.served import served

BOUND_S = 60.0
ON, OFF = FallbackOn("m", ("cloud",), "no worker"), FallbackOff("m", 3)


class Inbox:
    """An HTTP server that answers 503 to the first `failures` requests."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.received: list[dict[str, Any]] = []
        self.tokens: list[bytes | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        status = 200
        if self.failures:
            self.failures -= 1
            status = 503
        else:
            self.received.append(json.loads(body))
            self.tokens.append(dict(scope["headers"]).get(b"authorization"))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def until(inbox: Inbox, count: int) -> None:
    with trio.fail_after(BOUND_S):
        while len(inbox.received) < count:  # noqa: ASYNC110 - another task of a server
            await trio.sleep(0.01)


async def test_alerts_arrive_once_each_in_order_at_a_receiver_that_fails_at_first() -> None:
    inbox, feed = Inbox(failures=1), EventFeed()
    async with served(inbox) as url, trio.open_nursery() as nursery:
        config = Config(
            alerts=(AlertConfig(name="ops", url_env="HOOK", token_env="TOKEN", per_hour=50),)
        )
        environ = {"HOOK": f"{url}/hook", "TOKEN": "s3cret"}
        await nursery.start(Alerting(config, environ, feed, SpendingFigures).run)
        for event in (ON, WorkerLost("w1", "silent"), OFF):
            feed.publish(event)
        await until(inbox, 3)
        nursery.cancel_scope.cancel()
    assert [one["kind"] for one in inbox.received] == ["fallback", "worker", "fallback"]
    assert len({one["id"] for one in inbox.received}) == 3
    assert set(inbox.tokens) == {b"Bearer s3cret"}


async def test_only_chosen_kinds_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    """Alerts of the chosen kinds alone are sent, and an address that is a secret stands in no log,
    also when it does not answer.
    """
    inbox, feed = Inbox(), EventFeed()
    async with served(inbox) as url, trio.open_nursery() as nursery:
        config = Config(
            alerts=(
                AlertConfig(name="ops", url=url, kinds=("worker",)),
                AlertConfig(name="gone", url_env="HOOK"),
            )
        )
        environ = {"HOOK": "http://127.0.0.1:9/s3cret"}
        await nursery.start(Alerting(config, environ, feed, SpendingFigures).run)
        feed.publish(ON)
        feed.publish(WorkerLost("w1", "silent"))
        await until(inbox, 1)
        with trio.fail_after(BOUND_S):
            while "alerts gone" not in caplog.text:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert [one["kind"] for one in inbox.received] == ["worker"]
    assert "s3cret" not in caplog.text


async def test_a_command_gets_the_alert_on_its_standard_input(tmp_path: Path) -> None:
    target = tmp_path / "alert.json"
    code = f"import sys; open({str(target)!r}, 'w').write(sys.stdin.read())"
    config = Config(alerts=(AlertConfig(name="ops", command=(sys.executable, "-c", code)),))
    feed = EventFeed()
    async with trio.open_nursery() as nursery:
        await nursery.start(Alerting(config, {}, feed, SpendingFigures).run)
        feed.publish(ON)
        with trio.fail_after(BOUND_S):
            while not target.exists() or not target.read_text():  # noqa: ASYNC110
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    assert json.loads(target.read_text())["title"] == "m runs in the cloud"


async def test_a_host_is_woken_and_its_power_switched(tmp_path: Path) -> None:
    """The packet by UDP, the hook as a command."""
    target, mac = tmp_path / "switched", "00:1A:2b:3c:4d:5e"
    feed = EventFeed()
    with trio.socket.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as listening:
        await listening.bind(("127.0.0.1", 0))
        host = HostConfig(
            name="box",
            workers=("w1",),
            models=("m",),
            mac=mac,
            broadcast="127.0.0.1",
            wake_port=listening.getsockname()[1],
            power=(sys.executable, "-c", f"open({str(target)!r}, 'w').close()"),
            power_after_s=0.05,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(Alerting(Config(hosts=(host,)), {}, feed, SpendingFigures).run)
            feed.publish(ON)
            with trio.fail_after(BOUND_S):
                assert await listening.recv(200) == magic_packet(mac)
            feed.publish(WorkerReady("w1", 1, ("m",), "cpu"))
            feed.publish(WorkerLost("w1", "silent"))
            with trio.fail_after(BOUND_S):
                while not target.exists():  # noqa: ASYNC110
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()


async def test_passed_thresholds_are_events(autojump_clock: trio.abc.Clock) -> None:
    """Passed thresholds are events, once each; what was spent before the start is no event, nor is
    a window that begins.
    """
    account, spent = Account("provider", "cloud"), [60]

    def figures() -> SpendingFigures:
        return SpendingFigures(windows=(LimitWindow(account, "daily", 100, spent[0], 0),))

    feed = EventFeed()
    config = Config(gateway=GatewayConfig(spending_thresholds=(50, 80)))
    async with trio.open_nursery() as nursery:
        await nursery.start(Alerting(config, {}, feed, figures).run)
        seen = []
        for amount in (60, 85, 90, 10, 55):
            spent[0] = amount
            await trio.sleep(6)
            seen.append(feed.counts["spending threshold"])
        nursery.cancel_scope.cancel()
    assert seen == [0, 1, 1, 1, 2]


def test_a_secret_that_is_missing_is_named() -> None:
    config = Config(alerts=(AlertConfig(name="ops", url_env="HOOK"),))
    with pytest.raises(ConfigError, match="alerts `ops`: the environment variable HOOK is not set"):
        Alerting(config, {}, EventFeed(), SpendingFigures)
