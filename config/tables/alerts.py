"""`[[alerts]]` and `[[hosts]]`: where alerts go, and which machines the gateway wakes or restarts.

Must not know how an alert is sent.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec

from config.tables.values import ConfigTable, HardwareAddress, Hours, HttpUrl, Name, Port, Seconds

AlertForm = Literal["json", "ntfy", "slack"]
AlertKind = Literal[
    "fallback",
    "spending",
    "worker",
    "crash loop",
    "speed loss",
    "provider",
    "request",
    "conversation",
    "turns",
    "store",
]
_ALL_KINDS: Final[tuple[AlertKind, ...]] = get_args(AlertKind)


class AlertConfig(ConfigTable, frozen=True):
    """`[[alerts]]`: a receiver of alerts: a `url`, or `url_env` for an address that is a secret, or
    a `command` that gets one JSON object on its standard input. `form` is the form of the body:
    generic JSON, ntfy's or Slack's. `token_env` names the environment variable of a bearer token.
    In the local hours `quiet` ("22:00-07:00") only critical alerts are sent; the others follow as
    one message, and so do alerts beyond `per_hour`.
    """

    name: Name
    url: HttpUrl | None = None
    url_env: str | None = None
    command: tuple[str, ...] = ()
    form: AlertForm = "json"
    token_env: str | None = None
    kinds: tuple[AlertKind, ...] = _ALL_KINDS
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 20
    quiet: Hours | None = None


class HostConfig(ConfigTable, frozen=True):
    """`[[hosts]]`: a machine that runs `workers` (by name). When one of `models` falls back to
    providers and none of these workers is registered, a Wake-on-LAN packet goes to `mac`. The
    command `power` runs when its workers were lost and none came back within `power_after_s`.
    """

    name: Name
    workers: tuple[Name, ...]
    models: tuple[Name, ...] = ()
    mac: HardwareAddress | None = None
    broadcast: str = "255.255.255.255"
    wake_port: Port = 9
    power: tuple[str, ...] = ()
    power_after_s: Seconds = 300.0
