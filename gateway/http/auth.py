"""Authentication: the sender of a request, and what it may do.

Owns the rules for API keys, for web origins and for the operators' pages, and which headers name
the conversation and the client program. Must not know routes. A key is compared by its hash with
all configured keys, each in constant time.
"""

import functools
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from hmac import compare_digest
from typing import Final

from starlette.types import Scope

from config import KeyConfig
from gateway.api import MAX_SESSION_CHARS, ApiError
from gateway.http.edge import EdgeSettings
from gateway.http.refused_access import Reason, RefusedAccess
from gateway.turn import Caller
from protocol.addresses import is_loopback_host, is_numeric_host

SESSION_HEADERS: Final = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"x-opencode-session",
    b"x-session-affinity",
    b"x-affinity",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"conversation_id",
    b"x-client-request-id",
    b"x-hermes-session-id",
    b"x-hermes-affinity-key",
    b"x-litellm-session-id",
)
"""Headers by which clients name a conversation, the most specific first."""
_SESSION_HEADERS: Final = frozenset(SESSION_HEADERS)

_ADMINS_ONLY: Final = "This page needs an API key with `admin = true`."
_PRODUCT: Final = re.compile(rb"[A-Za-z0-9._-]{1,32}")

_FORWARDED: Final = frozenset(
    {
        b"forwarded", b"via", b"x-real-ip", b"true-client-ip", b"cf-connecting-ip",
        b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port",
        b"x-forwarded-server", b"x-envoy-external-address", b"x-envoy-expected-rq-timeout-ms",
    }
)  # fmt: skip
"""Headers that proxies add, each of which shows that another host sent the request."""


class Authenticator:
    """Identifies the sender of each request. Without keys every caller on this machine is an
    anonymous admin.
    """

    def __init__(self, settings: EdgeSettings) -> None:
        self.refused = RefusedAccess()
        self._settings = settings

    def identify(self, scope: Scope) -> Caller:
        """The sender of a request. Raises `ApiError` 401."""
        headers = tuple(scope["headers"])
        sent = dict(headers)
        session = session_of_headers(headers, sent)
        if self._settings.keys:
            return Caller.of_key(self._key_of(scope), session, headers, sent)
        if not _is_local(scope, sent):
            raise self._refusal(
                "no keys here",
                scope,
                "This gateway has no API keys, so it answers only clients on its own machine that "
                "name it by 127.0.0.1 or localhost; add [[keys]] to its configuration.",
            )
        return Caller(admin=True, session=session, headers=headers, sent=sent)

    def check_admin(self, scope: Scope) -> None:
        """Raise `ApiError` 401 or 403 unless the caller is local or holds an admin key."""
        if not _is_local(scope, dict(scope["headers"])) and not self.identify(scope).admin:
            raise self._refusal("not an admin", scope, _ADMINS_ONLY)

    def check_page(self, scope: Scope) -> None:
        """Like `check_admin`, for data that a web page reads. The page may also come from an
        allowed origin.
        """
        if _is_local(scope, dict(scope["headers"])):
            return
        if _is_from_here(scope):
            if self._is_allowed_page(scope):
                return
            if not self._settings.keys:
                raise ApiError(
                    403, "Without API keys, open this as http://127.0.0.1:PORT/ instead."
                )
        if not self.identify(scope).admin:
            raise self._refusal("not an admin", scope, _ADMINS_ONLY)

    def origin_of(self, scope: Scope) -> str | None:
        """The origin of the web page that sends the request if it is an allowed origin; None for a
        page of the gateway itself and without a page. Raises `ApiError` 403 for a foreign origin.

        A foreign page whose host name resolves to this machine (DNS rebinding) sends that name as
        Origin and as Host, so that their equality proves something only for loopback names.
        """
        origin = header_of(scope, b"origin")
        if origin is None:
            return None
        allowed = self._settings.config.allowed_origins
        if origin.lower() in {one.rstrip("/").lower() for one in allowed}:
            return origin
        netloc = origin.lower().removeprefix("http://")
        host = (header_of(scope, b"host") or "").lower()
        if netloc == host and is_loopback_host(_without_port(netloc)):
            return None
        raise self._refusal(
            "foreign page",
            scope,
            "Web pages of this origin may not use the gateway ([gateway] allowed_origins).",
        )

    def _is_allowed_page(self, scope: Scope) -> bool:
        host = (header_of(scope, b"host") or "localhost").lower()
        return any(
            origin.lower().partition("://")[2].rstrip("/") == host
            for origin in self._settings.config.allowed_origins
        )

    def _key_of(self, scope: Scope) -> KeyConfig:
        scheme, _, secret = (header_of(scope, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            secret = header_of(scope, b"x-api-key") or ""
        if not secret.strip():
            text = "An API key is needed: send `Authorization: Bearer KEY`."
            raise self._refusal("no key", scope, text)
        presented = "sha256:" + hashlib.sha256(secret.strip().encode("latin-1")).hexdigest()
        held = [key for key in self._settings.keys if compare_digest(key.hash, presented)]
        if not held:
            raise self._refusal("unknown key", scope, "This API key is not known here.")
        return held[0]

    def _refusal(self, reason: Reason, scope: Scope, message: str) -> ApiError:
        """Note the refusal. Returns its error: 403 if another key or page would not help."""
        self.refused.note(reason, scope, message)
        if reason in ("not an admin", "foreign page"):
            return ApiError(403, message)
        return ApiError(401, message, code="invalid_api_key")


def _is_local(scope: Scope, sent: Mapping[bytes, bytes]) -> bool:
    """Whether the client runs on this machine, and names it by loopback or an address. One that a
    proxy forwards counts as remote. A host name may be that of a proxy which adds no header, or of
    a foreign web page that resolves to this machine (DNS rebinding).
    """
    if not _FORWARDED.isdisjoint(sent) or (b"host" in sent and not _is_own_host(sent[b"host"])):
        return False
    client = scope.get("client")
    return client is not None and _is_loopback(client[0])


def _is_from_here(scope: Scope) -> bool:
    """Whether the connection comes from this machine, and no proxy says that it forwards."""
    if any(name in _FORWARDED for name, _ in scope["headers"]):
        return False
    client = scope.get("client")
    return client is not None and _is_loopback(client[0])


@functools.lru_cache(maxsize=1024)
def _is_own_host(host: bytes) -> bool:
    name = _without_port(host.decode("latin-1").lower()) or "localhost"
    return is_numeric_host(name) or is_loopback_host(name)


@functools.lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _without_port(netloc: str) -> str:
    name, _, port = netloc.rpartition(":")
    return name if port.isdigit() and name else netloc


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of that lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def session_of_headers(
    headers: Iterable[tuple[bytes, bytes]], sent: Mapping[bytes, bytes]
) -> str | None:
    """The name of the conversation in `headers` (with lower-case names; `sent` has the last value
    of each), or None.
    """
    if _SESSION_HEADERS.isdisjoint(sent):
        return None
    found = {name: value for name, value in headers if name in _SESSION_HEADERS and value}
    for name in SESSION_HEADERS:
        if name in found:
            return found[name].decode("latin-1")[:MAX_SESSION_CHARS]
    return None


@functools.lru_cache(maxsize=1024)
def client_of(user_agent: bytes) -> str:
    """The product name at the beginning of a `user-agent`, without its version; else `other`."""
    match = _PRODUCT.match(user_agent)
    return match[0].decode().lower() if match is not None else "other"


def parent_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """The span that sent these `headers`: `traceparent` and `tracestate`, or empty texts."""
    sent = dict(headers)
    parent, state = sent.get(b"traceparent", b""), sent.get(b"tracestate", b"")
    return parent.decode("latin-1"), state.decode("latin-1")


def client_of_headers(sent: Mapping[bytes, bytes]) -> str:
    """The program that sent these headers (by lower-case names)."""
    return client_of(sent[b"user-agent"]) if b"user-agent" in sent else "other"
