"""What a client says about the next turn of its conversation.

Owns which fields of a request body count. Must not know what follows from them.

`cache_control` with a `ttl` (Anthropic's, on the whole request, or on its last tool, system block
or message, where clients put the last mark), `prompt_cache_retention` (OpenAI's), and
`nvext.agent_hints.speculative_prefill` and `nvext.session_control` (Dynamo's). None is needed.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.conversations.returns import NO_HINT, Hint

_TTL: Final = re.compile(r"(\d{1,4})\s?([smhd])\Z")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_HOLDERS: Final = frozenset({"cache_control", "nvext", "prompt_cache_retention", "system", "tools"})
USUAL_TTL_S: Final = 300.0
"""The lifetime that a `cache_control` without a `ttl` asks for, in seconds."""


def hint_of(raw: Mapping[str, Any]) -> Hint:
    """The hints of a request body; fields of another form than their API's say nothing."""
    if _HOLDERS.isdisjoint(raw) and _ends_in_text(raw):
        return NO_HINT
    kept_s = _marked_s(raw)
    if "prompt_cache_retention" in raw:
        kept_s += _retention_s(raw["prompt_cache_retention"])
    comes = is_over = False
    if isinstance(hints := raw.get("nvext"), dict):
        agent, control = hints.get("agent_hints"), hints.get("session_control")
        comes = isinstance(agent, dict) and agent.get("speculative_prefill") is True
        is_over = isinstance(control, dict) and control.get("action") == "close"
    if not kept_s and not comes and not is_over:
        return NO_HINT
    return Hint(max(kept_s, default=None), is_over, comes)


def _ends_in_text(raw: Mapping[str, Any]) -> bool:
    """Whether the content of the last message is a text without parts, which cannot have a mark.
    Most are.
    """
    messages = raw.get("messages")
    last = messages[-1] if type(messages) is list and messages else None
    return type(last) is dict and type(last.get("content")) is str


def _retention_s(value: object) -> list[float]:
    if value in ("in_memory", "in-memory"):
        return [USUAL_TTL_S]
    seconds = _seconds(value) if isinstance(value, str) else None
    return [] if seconds is None else [seconds]


def _marked_s(raw: Mapping[str, Any]) -> list[float]:
    """The times to live of the marks at the places where clients put the last one."""
    holders: list[object] = [raw]
    for field in ("tools", "system"):
        if isinstance(listed := raw.get(field), list):
            holders += listed[-1:]
    messages = raw.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        content = messages[-1].get("content")
        if isinstance(content, list):
            holders += content[-1:]
    return [
        _lifetime_s(one["cache_control"])
        for one in holders
        if isinstance(one, dict) and "cache_control" in one and _is_mark(one["cache_control"])
    ]


def _is_mark(mark: object) -> bool:
    return isinstance(mark, dict) and mark.get("type") == "ephemeral"


def _lifetime_s(mark: Mapping[str, Any]) -> float:
    ttl = mark.get("ttl")
    seconds = _seconds(ttl) if isinstance(ttl, str) else None
    return USUAL_TTL_S if seconds is None else seconds


def _seconds(text: str) -> float | None:
    match = _TTL.match(text)
    return None if match is None else int(match[1]) * _UNITS[match[2]]
