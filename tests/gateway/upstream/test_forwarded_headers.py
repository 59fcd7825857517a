"""Which headers pass."""

import pytest

from gateway.upstream.forwarded_headers import (
    MAX_HEADERS,
    forwarded_to_client,
    forwarded_to_provider,
)


@pytest.mark.parametrize(
    "name",
    [
        *("host", "authorization", "cookie", "content-length", "content-type", "accept-encoding"),
        *("connection", "transfer-encoding", "te", "upgrade", "keep-alive", "proxy-authorization"),
        *("x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "openai-organization"),
        *("x-forwarded-for", "forwarded", "x-real-ip", "origin", "sec-fetch-site", "x-herma-debug"),
    ],
)
def test_headers_of_one_side_are_not_forwarded(name: str) -> None:
    """Hop-by-hop headers, credentials and the location of a client stay at the gateway."""
    assert forwarded_to_provider([(name.encode(), b"x")]) == []


@pytest.mark.parametrize(
    "name",
    [
        *("set-cookie", "content-length", "content-type", "transfer-encoding", "connection"),
        *("www-authenticate", "location", "server", "date", "access-control-allow-origin"),
        *("strict-transport-security", "x-herma-worker", "Set-Cookie", "X-Herma-Route"),
    ],
)
def test_headers_of_a_provider_are_not_forwarded(name: str) -> None:
    """Cookies, addresses and what describes the provider's own bytes or policies."""
    assert forwarded_to_client([(name, "x")]) == []


def test_other_headers_are_forwarded_both_ways() -> None:
    """Unknown names too, repeated ones in order, values as they are."""
    headers = [
        ("user-agent", "OpenAI/Python 2.24.0"),
        ("x-stainless-retry-count", "0"),
        ("x-session-affinity", "abc"),
        ("traceparent", "00-1-2-01"),
        ("my-own", "a"),
        ("my-own", "b\u00e9"),
    ]
    assert forwarded_to_provider([(k.encode(), v.encode("latin-1")) for k, v in headers]) == headers
    back = [("x-ratelimit-remaining-tokens", "10"), ("x-request-id", "r"), ("openai-version", "1")]
    assert forwarded_to_client(back) == back


def test_headers_listed_in_connection_are_not_forwarded() -> None:
    """A sender may declare any header to be of this one connection."""
    headers = [("connection", "keep-alive, X-Mine"), ("x-mine", "1"), ("x-other", "2")]
    assert forwarded_to_client(headers) == [("x-other", "2")]
    assert forwarded_to_provider([(k.encode(), v.encode()) for k, v in headers]) == [
        ("x-other", "2")
    ]


def test_a_header_with_a_secret_is_not_forwarded() -> None:
    """A provider's host name or our key in a value stays private."""
    headers = [("x-upstream", "http://api.far.example/v1"), ("x-request-id", "r")]
    assert forwarded_to_client(headers, ["api.far.example"]) == [("x-request-id", "r")]


def test_forwarded_headers_are_bounded() -> None:
    """However many a provider sends, the client's head stays small."""
    assert len(forwarded_to_client([(f"x-{at}", "v") for at in range(500)])) == MAX_HEADERS
    assert forwarded_to_client([("x-big", "v" * 20_000)]) == []
