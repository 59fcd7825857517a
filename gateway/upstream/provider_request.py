"""The provider request: a client's request in the form for one provider.

Owns the configured changes of fields, and the session hint: the header or field by which a provider
keeps a conversation on one machine. Must not know HTTP clients, prices or the provider's name of
the model, which `Provider` sets.
"""

import hashlib
from typing import Any, Final, NamedTuple

import msgspec

from config import ParamsConfig
from gateway.api import ChatRequest
from gateway.upstream.forwarded_headers import Header
from gateway.upstream.thinking_switch import with_switch

_SESSION_BYTES: Final = 16


_VARIABLES: Final = "chat_template_kwargs"
"""Fields with template variables: a client's variables are merged over the configured ones
instead of replacing them.
"""


class ProviderRequest(NamedTuple):
    """The request with the body to send, and the headers to send with it."""

    request: ChatRequest
    headers: tuple[Header, ...]


def apply_params(raw: dict[str, Any], params: ParamsConfig) -> dict[str, Any]:
    """`raw` without the fields that `params` drop, with their defaults for missing fields, and with
    the fields that they set; `raw` itself if `params` are empty.
    """
    if not (params.set or params.default or params.drop):
        return raw
    kept = {name: value for name, value in raw.items() if name not in params.drop}
    given = {name: value for name, value in kept.items() if value is not None}
    default = {k: v for k, v in params.default.items() if k not in given}
    own, stated = given.get(_VARIABLES), params.default.get(_VARIABLES)
    if isinstance(own, dict) and isinstance(stated, dict):
        default[_VARIABLES] = {**stated, **own}
    return {**kept, **default, **params.set}


def provider_request(
    request: ChatRequest,
    headers: list[Header],
    *,
    params: ParamsConfig,
    session_hint: str | None,
    session: str,
    stream_usage: bool = True,
    thinking_switch: str = "none",
) -> ProviderRequest:
    """`request` for a provider that identifies a conversation by `session_hint`: the name of a
    header if it contains a hyphen, else of a field. A value that the client set there is kept.
    Without `stream_usage` only a client itself may ask for the usage of a stream. A request of the
    Messages API switches thinking by `thinking_switch`.
    """
    raw = request.raw
    if request.translated_from == "messages":
        raw = with_switch(raw, thinking_switch)
    raw = apply_params(raw, params)
    if request.translated_from and not stream_usage:
        raw = {name: value for name, value in raw.items() if name != "stream_options"}
    if session_hint is None:
        pass
    elif "-" not in session_hint:
        raw = raw if raw.get(session_hint) is not None else {**raw, session_hint: session}
    elif (name := session_hint.lower().encode()) not in dict(headers):
        headers = [*headers, (name, session.encode())]
    changed = request if raw is request.raw else msgspec.structs.replace(request, raw=raw)
    return ProviderRequest(changed, tuple(headers))


def session_name(key: str, session: str | None, request: ChatRequest) -> str:
    """A name for the conversation that reveals nothing about it: a hash of the client's own name
    for it, else of the first system and user texts, which are the same in all its turns.
    """
    if session is None:
        system = next((m.content for m in request.messages[:1] if m.role != "user"), None)
        user = next((m.content for m in request.messages if m.role == "user"), None)
        named = f"{system}\0{user}"
    else:
        named = session
    text = f"{key}\0{session is None}\0{named}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=_SESSION_BYTES).hexdigest()
