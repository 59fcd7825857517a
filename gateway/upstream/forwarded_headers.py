"""Which headers are forwarded, from a client to a provider and from the provider's response to the
client.

Owns the two lists of headers that are not forwarded: those that belong to one connection or to one
side's account, and those that the gateway sets itself. Must not know providers.
"""

from collections.abc import Sequence
from typing import Final

from protocol.redaction import Redaction

Header = tuple[bytes, bytes]
"""A name in lower case, and its value as it was received."""

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16_384
"""The bound on the bytes of all names and values; headers beyond it are dropped."""

_ONE_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

_NOT_SENT: Final = _ONE_CONNECTION | frozenset(
    {
        # The gateway sets these in its request.
        b"accept", b"accept-encoding", b"authorization", b"content-encoding", b"content-length",
        b"content-type", b"expect", b"host",
        # Accounts and location of the client.
        b"cookie", b"api-key", b"openai-organization", b"openai-project",
        b"forwarded", b"via", b"x-real-ip", b"origin", b"referer", b"baggage", b"true-client-ip",
        b"x-client-ip", b"x-envoy-external-address", b"x-azure-clientip", b"remote-user",
        b"helicone-auth", b"x-bf-vk",
        # Conditional requests.
        b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"range",
    }
)  # fmt: skip
_NOT_SENT_PREFIXES: Final = (
    b"x-forwarded-", b"sec-", b"x-herma-", b"cf-",
    # What proxies say of who was let in: names, addresses, certificates, signed claims.
    b"x-auth-", b"x-authenticated-", b"x-remote-", b"x-webauth-", b"x-amzn-oidc-", b"x-goog-iap-",
    b"x-goog-authenticated-", b"x-ms-client-", b"x-ms-token-", b"tailscale-", b"ssl-client-",
    b"x-ssl-", b"x-client-cert",
)  # fmt: skip
_NOT_SENT_SUFFIXES: Final = (
    b"-api-key", b"-virtual-key", b"-access-key", b"-token", b"-secret", b"-password", b"-jwt",
    b"-assertion", b"-client-ip", b"-connecting-ip",
)  # fmt: skip

_NOT_RETURNED: Final = _ONE_CONNECTION | frozenset(
    {
        # The gateway sets these in its response.
        b"cache-control", b"content-encoding", b"content-length", b"content-type", b"date",
        b"server", b"allow", b"vary", b"x-accel-buffering",
        # Account, location and policies of the provider.
        b"alt-svc", b"content-location", b"link", b"location", b"nel", b"refresh", b"report-to",
        b"set-cookie", b"set-cookie2", b"strict-transport-security", b"via", b"www-authenticate",
        b"clear-site-data", b"content-security-policy",
    }
)  # fmt: skip
_NOT_RETURNED_PREFIXES: Final = (b"access-control-", b"x-herma-")


def forwarded_to_provider(headers: Sequence[Header]) -> list[Header]:
    """The request headers of a client that are forwarded to a provider."""
    listed = _listed(headers)
    return _bounded([one for one in headers if _is_for_provider(one[0]) and one[0] not in listed])


def forwarded_to_client(
    headers: Sequence[Header], secrets: Sequence[bytes] | Redaction = ()
) -> list[Header]:
    """The response headers that are forwarded to the client; none contains one of `secrets`."""
    redaction = secrets if isinstance(secrets, Redaction) else Redaction(secrets)
    listed = _listed(headers)
    return _bounded(
        [
            one
            for one in headers
            if _is_for_client(one[0]) and one[0] not in listed and not redaction.is_in(one[1])
        ]
    )


def _is_for_provider(name: bytes) -> bool:
    return (
        name not in _NOT_SENT
        and not name.startswith(_NOT_SENT_PREFIXES)
        and not name.endswith(_NOT_SENT_SUFFIXES)
    )


def _is_for_client(name: bytes) -> bool:
    return name not in _NOT_RETURNED and not name.startswith(_NOT_RETURNED_PREFIXES)


def _listed(headers: Sequence[Header]) -> frozenset[bytes]:
    """The names that a `Connection` header lists as belonging to one connection."""
    if b"connection" not in dict(headers):
        return frozenset()
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def _bounded(headers: list[Header]) -> list[Header]:
    """The first of the headers, up to the limits."""
    num_bytes = 0
    for at, (name, value) in enumerate(headers):
        num_bytes += len(name) + len(value)
        if at == MAX_HEADERS or num_bytes > MAX_HEADER_BYTES:
            return headers[:at]
    return headers
