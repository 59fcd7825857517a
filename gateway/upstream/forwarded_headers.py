"""Which headers of a request go on to a provider, and which of its answer come back.

Owns the two lists of those that do not: they belong to one connection, to one side's account, or
to what the gateway says itself. All others pass, whatever they mean. Must not know providers.
"""

from collections.abc import Iterable, Sequence
from typing import Final

Header = tuple[str, str]

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16_384
"""Together, names and values; what is over it stays behind."""

_ONE_CONNECTION: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)

_NOT_SENT_ON: Final = _ONE_CONNECTION | frozenset(
    {
        # What the gateway's own request to a provider says.
        *("accept", "accept-encoding", "authorization", "content-encoding", "content-length"),
        *("content-type", "expect", "host"),
        # Accounts and whereabouts of a client, which are the gateway's business alone.
        *("cookie", "api-key", "openai-organization", "openai-project"),
        *("forwarded", "via", "x-real-ip", "origin", "referer"),
        # Conditions on what a cache holds.
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "range"),
    }
)
_NOT_SENT_ON_BEGINNINGS: Final = ("x-forwarded-", "sec-", "x-herma-", "cf-")
_NOT_SENT_ON_ENDINGS: Final = ("-api-key", "-token", "-secret")

_NOT_PASSED_BACK: Final = _ONE_CONNECTION | frozenset(
    {
        # What the gateway's own answer says.
        *("cache-control", "content-encoding", "content-length", "content-type", "date", "server"),
        *("allow", "vary", "x-accel-buffering"),
        # A provider's account, place and policies.
        *("alt-svc", "content-location", "link", "location", "nel", "refresh", "report-to"),
        *("set-cookie", "set-cookie2", "strict-transport-security", "via", "www-authenticate"),
        *("clear-site-data", "content-security-policy"),
    }
)
_NOT_PASSED_BACK_BEGINNINGS: Final = ("access-control-", "x-herma-")


def sent_on(headers: Iterable[tuple[bytes, bytes]]) -> list[Header]:
    """Those of a client's `headers` (lower-case names) that a provider gets."""
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return _bounded(
        (name, value)
        for name, value in _without_listed(named)
        if name not in _NOT_SENT_ON
        and not name.startswith(_NOT_SENT_ON_BEGINNINGS)
        and not name.endswith(_NOT_SENT_ON_ENDINGS)
    )


def passed_back(headers: Iterable[Header], secrets: Sequence[str] = ()) -> list[Header]:
    """Those of a provider's `headers` that the client gets: none that holds one of `secrets`."""
    named = [(name.lower(), value) for name, value in headers]
    return _bounded(
        (name, value)
        for name, value in _without_listed(named)
        if name not in _NOT_PASSED_BACK
        and not name.startswith(_NOT_PASSED_BACK_BEGINNINGS)
        and not any(secret in value for secret in secrets)
    )


def _without_listed(headers: list[Header]) -> list[Header]:
    """Without those that a `Connection` header declares to be of one connection too."""
    listed = {
        token.strip().lower()
        for name, value in headers
        if name == "connection"
        for token in value.split(",")
    }
    return [(name, value) for name, value in headers if name not in listed]


def _bounded(headers: Iterable[Header]) -> list[Header]:
    kept: list[Header] = []
    num_bytes = 0
    for name, value in headers:
        num_bytes += len(name) + len(value)
        if len(kept) == MAX_HEADERS or num_bytes > MAX_HEADER_BYTES:
            break
        kept.append((name, value))
    return kept
