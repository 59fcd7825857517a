"""Alerting: carries events to the receivers of alerts and to the actions on hosts.

Owns one task for each receiver, one for hosts, and one that checks the spending. Must not decide:
`Pacing`, `Hosts` and `Thresholds` do. If there are several gateway processes, only the first one
runs this; otherwise all of them would send each alert.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, final

import msgspec
import trio

from config import Config, HostConfig
from gateway.alerts.alert import alert_of
from gateway.alerts.host_actions import CommandFailedError, run_command, wake
from gateway.alerts.hosts import HostAction, Hosts
from gateway.alerts.pacing import Pacing, QuietHours
from gateway.alerts.receiver import ATTEMPT_S, NotReceivedError, Receiver
from gateway.spending import SpendingFigures, Thresholds
from gateway.telemetry import EventFeed, FleetEvent, Listener, SpendingThreshold

LOOK_EVERY_S: Final = 5.0

_log = logging.getLogger(__name__)
_decode: Final[Any] = msgspec.json.Decoder(FleetEvent).decode


def local_minute() -> int:
    """The minute of the day in local time, from 0."""
    now = datetime.now().astimezone()
    return 60 * now.hour + now.minute


@final
class Alerting:
    """Raises `ConfigError` for receivers whose secrets are missing."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        feed: EventFeed,
        figures: Callable[[], SpendingFigures],
    ) -> None:
        self._config = config
        self._feed = feed
        self._figures = figures
        self._run = secrets.token_hex(4)
        self._receivers = [Receiver(one, environ) for one in config.alerts]
        self._hosts = {host.name: host for host in config.hosts}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Alert until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for receiver in self._receivers:
                    await nursery.start(self._serve, receiver)
                if self._hosts:
                    await nursery.start(self._keep_hosts, tuple(self._hosts.values()))
                nursery.start_soon(self._look_at_spending)
                task_status.started()
        finally:
            for receiver in self._receivers:
                receiver.close()

    async def _serve(
        self, receiver: Receiver, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        config = receiver.config
        quiet = None if config.quiet is None else QuietHours.parse(config.quiet)
        pacing = Pacing(config.per_hour, quiet)
        with self._feed.listen() as listener:
            task_status.started()
            while True:
                await _news(listener, pacing.wait_s(trio.current_time(), local_minute()))
                num_lost, events = listener.take()
                if num_lost:
                    _log.warning("alerts %s: %d events were missed", config.name, num_lost)
                for event in events:
                    alert = alert_of(event, self._run)
                    if alert is not None and alert.kind in config.kinds:
                        pacing.put(alert)
                await self._send(receiver, pacing)

    async def _send(self, receiver: Receiver, pacing: Pacing) -> None:
        while (alert := pacing.due(trio.current_time(), local_minute())) is not None:
            try:
                await receiver.send(alert)
            except NotReceivedError as error:
                pacing.failed(trio.current_time())
                _log.warning("alerts %s: %s", receiver.config.name, error)
            else:
                pacing.delivered(trio.current_time())

    async def _keep_hosts(
        self,
        configs: Sequence[HostConfig],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        hosts = Hosts(configs)
        with self._feed.listen() as listener:
            task_status.started()
            while True:
                await _news(listener, hosts.wait_s(trio.current_time()))
                _, events = listener.take()
                for event in events:
                    hosts.observe(_decode(event.json), trio.current_time())
                for action in hosts.due(trio.current_time()):
                    await self._act(action)

    async def _act(self, action: HostAction) -> None:
        """Do the action. A failure is logged and ends only this attempt."""
        host = self._hosts[action.host]
        _log.warning("host %s: %s (%s)", host.name, action.what, action.why)
        try:
            if action.what == "wake":
                assert host.mac is not None
                await wake(host.mac, host.broadcast, host.wake_port)
                return
            with trio.fail_after(ATTEMPT_S):
                await run_command(host.power, b"")
        except (OSError, CommandFailedError, trio.TooSlowError) as error:
            _log.error("host %s: %s failed: %s", host.name, action.what, error)

    async def _look_at_spending(self) -> None:
        thresholds = Thresholds(self._config.gateway.spending_thresholds)
        while True:
            for (kind, name), period, percent in thresholds.passed(self._figures().windows):
                self._feed.publish(SpendingThreshold(kind, name, period, percent))
            await trio.sleep(LOOK_EVERY_S)


async def _news(listener: Listener, wait_s: float) -> None:
    """Return after `wait_s` seconds, or when there is an event."""
    with trio.move_on_after(wait_s) if wait_s < math.inf else trio.CancelScope():
        await listener.wait()
