"""Two things that servers require in a form of their own: the field that bounds an answer, and the
ids of calls that another server or another model has made.

Owns which known provider takes which, and how a request gets them. Must not know turns.
"""

import hashlib
import re
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

CapField = Literal["max_tokens", "max_completion_tokens"]
CallIdForm = Literal["any", "short", "nine"]
"""See `config.ProviderConfig`."""

_CAPS: Final[tuple[CapField, CapField]] = ("max_completion_tokens", "max_tokens")
"""The first one counts where a request has both."""
_CAP_HOSTS: Final[dict[str, CapField]] = {
    ".api.openai.com": "max_completion_tokens",
    ".openai.azure.com": "max_completion_tokens",
    ".models.github.ai": "max_completion_tokens",
    ".mistral.ai": "max_tokens",
}
_ID_HOSTS: Final[dict[str, CallIdForm]] = {
    ".api.openai.com": "short",
    ".openai.azure.com": "short",
    ".models.github.ai": "short",
    ".mistral.ai": "nine",
}
_SHORT_CHARS: Final = 40
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Fields = dict[str, Any]


@lru_cache(maxsize=256)
def cap_at(base_url: str) -> CapField | None:
    """The field of a known provider; None: the client's own."""
    return next((one for end, one in _CAP_HOSTS.items() if _host(base_url).endswith(end)), None)


@lru_cache(maxsize=256)
def ids_at(base_url: str) -> CallIdForm:
    """The form of ids at a known provider."""
    return next((one for end, one in _ID_HOSTS.items() if _host(base_url).endswith(end)), "any")


def with_cap(raw: Fields, field: CapField | None) -> Fields:
    """`raw` with the bound of its answer in `field`; `raw` itself if it is there, or there is none.
    Models of OpenAI that reason refuse `max_tokens`, Mistral the newer name.
    """
    given = [name for name in _CAPS if raw.get(name) is not None]
    if field is None or not given or given == [field]:
        return raw
    rest = {name: value for name, value in raw.items() if name not in _CAPS}
    return {**rest, field: raw[given[0]]}


def with_ids(raw: Fields, form: CallIdForm) -> Fields:
    """`raw` with the ids of the calls in its messages in a form; `raw` itself if they have it. An
    id that has not becomes another one, the same in every turn, so that prefix caches hold.
    """
    messages = raw.get("messages")
    if form == "any" or not isinstance(messages, list):
        return raw
    changed = [_message(one, form) for one in messages]
    if all(new is old for new, old in zip(changed, messages, strict=True)):
        return raw
    return {**raw, "messages": changed}


def with_forms(raw: Fields, cap: CapField | None, ids: CallIdForm | None) -> Fields:
    """`raw` with the bound of its answer in the field `cap` and the ids of its calls in the form
    `ids`; `raw` itself if it has them so.
    """
    return with_ids(with_cap(raw, cap), ids or "any")


def _message(message: object, form: CallIdForm) -> object:
    if not isinstance(message, dict):
        return message
    found: Fields = {}
    named = message.get("tool_call_id")
    if isinstance(named, str) and (new := _id(named, form)) != named:
        found["tool_call_id"] = new
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        made = [_call(call, form) for call in calls]
        if any(new is not old for new, old in zip(made, calls, strict=True)):
            found["tool_calls"] = made
    return {**message, **found} if found else message


def _call(call: object, form: CallIdForm) -> object:
    given = call.get("id") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(given, str):
        return call
    new = _id(given, form)
    return call if new == given else {**call, "id": new}


def _id(given: str, form: CallIdForm) -> str:
    if len(given) <= _SHORT_CHARS if form == "short" else _NINE.fullmatch(given):
        return given
    digest = hashlib.blake2b(given.encode("utf-8", "surrogatepass"), digest_size=12)
    if form == "short":
        return f"call_{digest.hexdigest()}"
    number, digits = int.from_bytes(digest.digest(), "big"), []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _host(base_url: str) -> str:
    return f".{urlsplit(base_url).hostname}"
