"""The values of keys: their types, bounds and patterns.

Owns the patterns and their words. Must not know which table has which key.
"""

from typing import Annotated, Final

import msgspec

_NAME: Final = r"^[A-Za-z0-9._:/@-]+$"
_ALIAS: Final = r"^[A-Za-z0-9._:/@-]*[A-Za-z0-9._:/@*-]$"
_CLIENT: Final = r"^(\*|[a-z0-9._-]{1,32})$"
_URL: Final = r"^https?://"
_DEVICE: Final = r"^(auto|cpu|cuda(:\d+)?)$"
_CURRENCY: Final = r"^[A-Z]{3}$"
_FIELD_NAME: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
_ZMQ_URL: Final = r"^(tcp|ipc)://.+$"
_TARGET: Final = r"^/[!-~]*$"
_PATH: Final = r"^(/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)+$"
_ENGINE_URL: Final = r"^(https?://[^/?#]+(/v1)?/?|unix:/.+)$"
_SIZE: Final = r"^(auto|0|[1-9]\d{0,5}(MiB|GiB|TiB))$"
_HOST_PORT: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[1-9][0-9]{0,4}$"
_QUIET: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"
_MAC: Final = r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$"
NAME_IN_WORDS: Final = "letters, digits and . _ : / @ - only"
PATTERNS: Final = {
    _NAME: NAME_IN_WORDS,
    _ALIAS: "letters, digits and . _ : / @ - only, perhaps with * at the end",
    _CLIENT: "a program's name in its user-agent, in lower case, or * for all",
    _URL: "an address that begins with http:// or https://",
    _DEVICE: "auto, cpu, cuda or cuda:N",
    _CURRENCY: "three capital letters, as USD or EUR",
    _FIELD_NAME: "letters, digits, _ and - only, a letter first",
    _ZMQ_URL: "tcp://HOST:PORT or ipc://PATH",
    _TARGET: "a path that begins with /",
    _PATH: "a path below /v1 as /videos: segments behind single slashes, none begins with a dot",
    _SIZE: "auto, 0 for none, or a size as 64GiB",
    _ENGINE_URL: "http://HOST:PORT, https://HOST:PORT or unix:/PATH",
    _HOST_PORT: "HOST:PORT, as 10.0.0.1:29600",
    _QUIET: "HH:MM-HH:MM, as 22:00-07:00",
    _MAC: "a hardware address, as 00:1a:2b:3c:4d:5e",
}
"""The patterns in words, for mistakes and for the reference."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_NAME)]
Alias = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_ALIAS)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Gap = Annotated[float, msgspec.Meta(gt=0, le=60_000)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**50)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=99)]
Processes = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""A worker dials at most this many gateways."""
Pause = Annotated[float, msgspec.Meta(ge=0, le=3600)]
HangSeconds = Annotated[float, msgspec.Meta(ge=3, le=3600)]
"""A gateway process beats once a second."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]

PassedPath = Annotated[str, msgspec.Meta(max_length=256, pattern=_PATH)]
HttpUrl = Annotated[str, msgspec.Meta(pattern=_URL)]
ZmqUrl = Annotated[str, msgspec.Meta(pattern=_ZMQ_URL)]
Device = Annotated[str, msgspec.Meta(pattern=_DEVICE)]
Currency = Annotated[str, msgspec.Meta(pattern=_CURRENCY)]
FieldName = Annotated[str, msgspec.Meta(pattern=_FIELD_NAME)]
Target = Annotated[str, msgspec.Meta(pattern=_TARGET)]
EngineUrl = Annotated[str, msgspec.Meta(pattern=_ENGINE_URL)]
Size = Annotated[str, msgspec.Meta(pattern=_SIZE)]
ClientName = Annotated[str, msgspec.Meta(pattern=_CLIENT)]
HostPort = Annotated[str, msgspec.Meta(pattern=_HOST_PORT)]
Hours = Annotated[str, msgspec.Meta(pattern=_QUIET)]
HardwareAddress = Annotated[str, msgspec.Meta(pattern=_MAC)]


class ConfigTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: frozen, by keyword, unknown keys refused."""
