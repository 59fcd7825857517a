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
        "host", "authorization", "cookie", "content-length", "content-type", "accept-encoding",
        "connection", "transfer-encoding", "te", "upgrade", "keep-alive", "proxy-authorization",
        "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "openai-organization",
        "true-client-ip", "fastly-client-ip", "x-envoy-external-address", "x-client-cert-subject",
        "x-auth-request-email", "x-amzn-oidc-data", "x-goog-iap-jwt-assertion", "remote-user",
        "tailscale-user-login", "x-ms-client-principal", "x-portkey-virtual-key", "baggage",
        "x-forwarded-for", "forwarded", "x-real-ip", "origin", "sec-fetch-site", "x-herma-debug",
    ],
)  # fmt: skip
def test_headers_of_one_side_are_not_forwarded(name: str) -> None:
    """Hop-by-hop headers, credentials and the location of a client stay at the gateway."""
    assert forwarded_to_provider([(name.encode(), b"x")]) == []


@pytest.mark.parametrize(
    "name",
    [
        "set-cookie", "content-length", "content-type", "transfer-encoding", "connection",
        "www-authenticate", "location", "server", "date", "access-control-allow-origin",
        "strict-transport-security", "x-herma-worker", "set-cookie2", "x-herma-route",
    ],
)  # fmt: skip
def test_headers_of_a_provider_are_not_forwarded(name: str) -> None:
    """Cookies, addresses and what describes the provider's own bytes or policies."""
    assert forwarded_to_client([(name.encode(), b"x")]) == []


def test_other_headers_are_forwarded_both_ways() -> None:
    """Unknown names too, repeated ones in order, values as they are."""
    headers = [
        (b"user-agent", b"OpenAI/Python 2.24.0"),
        (b"x-stainless-retry-count", b"0"),
        (b"x-session-affinity", b"abc"),
        (b"traceparent", b"00-1-2-01"),
        (b"my-own", b"a"),
        (b"my-own", b"b\xe9"),
    ]
    assert forwarded_to_provider(headers) == headers
    back = [
        (b"x-ratelimit-remaining-tokens", b"10"),
        (b"x-request-id", b"r"),
        (b"openai-version", b"1"),
    ]
    assert forwarded_to_client(back) == back


def test_headers_listed_in_connection_are_not_forwarded() -> None:
    """A sender may declare any header to be of this one connection."""
    headers = [(b"connection", b"keep-alive, X-Mine"), (b"x-mine", b"1"), (b"x-other", b"2")]
    assert forwarded_to_client(headers) == [(b"x-other", b"2")]
    assert forwarded_to_provider(headers) == [(b"x-other", b"2")]


def test_a_header_with_a_secret_is_not_forwarded() -> None:
    """A provider's host name or our key in a value stays private."""
    headers = [(b"x-upstream", b"http://api.far.example/v1"), (b"x-request-id", b"r")]
    assert forwarded_to_client(headers, [b"api.far.example"]) == [(b"x-request-id", b"r")]


def test_forwarded_headers_are_bounded() -> None:
    """However many a provider sends, the client's head stays small."""
    many = [(b"x-%d" % at, b"v") for at in range(500)]
    assert forwarded_to_client(many) == many[:MAX_HEADERS]
    assert forwarded_to_client([(b"x-big", b"v" * 20_000)]) == []
