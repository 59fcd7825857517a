"""Which headers are forwarded, from a client to a provider and from its response to the client.

Owns the two lists of headers that are not: they belong to one connection or to one side's account,
or the gateway sets them itself. All others are forwarded. Must not know providers.
"""

from collections.abc import Iterable, Sequence
from typing import Final

Header = tuple[str, str]

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16_384
"""Of names and values together; headers beyond are dropped."""

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

_NOT_SENT: Final = _ONE_CONNECTION | frozenset(
    {
        # The gateway sets these in its request.
        *("accept", "accept-encoding", "authorization", "content-encoding", "content-length"),
        *("content-type", "expect", "host"),
        # Accounts and location of the client.
        *("cookie", "api-key", "openai-organization", "openai-project"),
        *("forwarded", "via", "x-real-ip", "origin", "referer"),
        # Conditional requests.
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "range"),
    }
)
_NOT_SENT_PREFIXES: Final = ("x-forwarded-", "sec-", "x-herma-", "cf-")
_NOT_SENT_SUFFIXES: Final = ("-api-key", "-token", "-secret")

_NOT_RETURNED: Final = _ONE_CONNECTION | frozenset(
    {
        # The gateway sets these in its response.
        *("cache-control", "content-encoding", "content-length", "content-type", "date", "server"),
        *("allow", "vary", "x-accel-buffering"),
        # Account, location and policies of the provider.
        *("alt-svc", "content-location", "link", "location", "nel", "refresh", "report-to"),
        *("set-cookie", "set-cookie2", "strict-transport-security", "via", "www-authenticate"),
        *("clear-site-data", "content-security-policy"),
    }
)
_NOT_RETURNED_PREFIXES: Final = ("access-control-", "x-herma-")


def forwarded_to_provider(headers: Iterable[tuple[bytes, bytes]]) -> list[Header]:
    """Those of a client's request `headers` (lower-case names) that a provider gets."""
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    return _bounded(
        (name, value)
        for name, value in _without_listed(named)
        if name not in _NOT_SENT
        and not name.startswith(_NOT_SENT_PREFIXES)
        and not name.endswith(_NOT_SENT_SUFFIXES)
    )


def forwarded_to_client(headers: Iterable[Header], secrets: Sequence[str] = ()) -> list[Header]:
    """Those of a response's `headers` that the client gets; none contains one of `secrets`."""
    named = [(name.lower(), value) for name, value in headers]
    return _bounded(
        (name, value)
        for name, value in _without_listed(named)
        if name not in _NOT_RETURNED
        and not name.startswith(_NOT_RETURNED_PREFIXES)
        and not any(secret in value for secret in secrets)
    )


def _without_listed(headers: list[Header]) -> list[Header]:
    """`headers` without those that a `Connection` header lists as belonging to one connection."""
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
