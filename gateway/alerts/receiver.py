"""One configured receiver of alerts: an address or a command.

Owns the attempt to send one alert, and what counts as received. Must not know when alerts are sent.
No text names the address, which often holds a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import trio

from config import AlertConfig, secret_of
from gateway.alerts.alert import Alert
from gateway.alerts.forms import Header, as_json, message_of
from gateway.alerts.host_actions import CommandFailedError, run_command
from protocol.errors import ConfigError, HttpError
from protocol.transport import HttpClient
from protocol.version import VERSION

ATTEMPT_S: Final = 20.0


class NotReceivedError(Exception):
    """The receiver may not have the alert; the text says why."""


class Receiver:
    """Raises `ConfigError` for a missing secret or an invalid address."""

    def __init__(self, config: AlertConfig, environ: Mapping[str, str]) -> None:
        self.config = config
        self._client: HttpClient | None = None
        self._headers: list[Header] = [(b"user-agent", f"herma/{VERSION}".encode())]
        if config.command:
            return
        place = f"alerts `{config.name}`"
        url = config.url or secret_of(place, config.url_env, None, environ) or ""
        try:
            self._client = HttpClient(url, max_connections=1)
        except ValueError:
            raise ConfigError(f"{place}: its address is not an http or https address") from None
        parts = urlsplit(url)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        token = secret_of(place, config.token_env, None, environ)
        if token is not None:
            self._headers.append((b"authorization", f"Bearer {token}".encode()))

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    async def send(self, alert: Alert) -> None:
        """Send an alert. Raises `NotReceivedError`."""
        with trio.move_on_after(ATTEMPT_S) as deadline:
            if self._client is None:
                try:
                    await run_command(self.config.command, as_json(alert))
                except CommandFailedError as error:
                    raise NotReceivedError(str(error)) from error
            else:
                await self._post(self._client, alert)
        if deadline.cancelled_caught:
            raise NotReceivedError(f"nothing came back within {ATTEMPT_S:.0f} s")

    async def _post(self, client: HttpClient, alert: Alert) -> None:
        headers, body = message_of(alert, self.config.form)
        try:
            async with client.exchange(
                "POST", self._target, [*self._headers, *headers], body
            ) as response:
                async for _ in response.body:
                    pass
        except HttpError as error:
            raise NotReceivedError(str(error)) from error
        if not 200 <= response.status < 300:
            raise NotReceivedError(f"it answers HTTP {response.status}")
