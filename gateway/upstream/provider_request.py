"""A client's request as one provider gets it.

Owns the configured rewriting of fields and the translation of the conversation's name into the
header or field by which that provider keeps a conversation on one machine. Must not know HTTP
clients, prices or the model's own name there, which the provider puts in.
"""

import hashlib
from typing import Any, Final, NamedTuple

import msgspec

from config import ParamsConfig
from gateway.api import ChatRequest
from gateway.upstream.forwarded_headers import Header

_SESSION_BYTES: Final = 16


class Outgoing(NamedTuple):
    """The request with the body that is sent, and the headers that go with it."""

    request: ChatRequest
    headers: tuple[Header, ...]


def rewritten(raw: dict[str, Any], params: ParamsConfig) -> dict[str, Any]:
    """`raw` without what `params` drop, with their defaults where nothing is given, and with what
    they set in any case; `raw` itself if they say nothing.
    """
    if not (params.set or params.default or params.drop):
        return raw
    kept = {name: value for name, value in raw.items() if name not in params.drop}
    given = {name: value for name, value in kept.items() if value is not None}
    return {**kept, **{k: v for k, v in params.default.items() if k not in given}, **params.set}


def outgoing(
    request: ChatRequest,
    headers: list[Header],
    *,
    params: ParamsConfig,
    session_hint: str | None,
    session: str,
) -> Outgoing:
    """`request` for a provider that knows a conversation by `session_hint`: the name of a header
    if it holds a hyphen, else of a field. A client that names it there itself is left alone.
    """
    raw = rewritten(request.raw, params)
    if session_hint is None:
        pass
    elif "-" not in session_hint:
        raw = raw if raw.get(session_hint) is not None else {**raw, session_hint: session}
    elif session_hint.lower() not in dict(headers):
        headers = [*headers, (session_hint.lower(), session)]
    changed = request if raw is request.raw else msgspec.structs.replace(request, raw=raw)
    return Outgoing(changed, tuple(headers))


def session_name(key: str, session: str | None, request: ChatRequest) -> str:
    """A name for the request's conversation that tells a stranger nothing: a hash of the client's
    own name for it, else of what its turns have in common, the first system and user texts.
    """
    if session is None:
        system = next((m.content for m in request.messages if m.role != "user"), None)
        user = next((m.content for m in request.messages if m.role == "user"), None)
        named = f"{system}\0{user}"
    else:
        named = session
    text = f"{key}\0{session is None}\0{named}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_SESSION_BYTES).hexdigest()
