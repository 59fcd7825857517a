"""What a client says about the next turn of its conversation.

Owns which fields of a request body count. Must not know what follows from them.

`cache_control` with a `ttl` (Anthropic's, on the whole request, or on its last tool, system block
or message, where clients put the last mark), `prompt_cache_retention` (OpenAI's), and
`nvext.agent_hints.speculative_prefill` and `nvext.session_control` (Dynamo's). None is needed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.conversations.returns import NO_HINT, Hint

_TTL: Final = re.compile(r"(\d{1,4})\s?([smhd])\Z")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
USUAL_TTL_S: Final = 300.0
"""The lifetime that a `cache_control` without a `ttl` asks for, in seconds."""


def hint_of(raw: Mapping[str, Any]) -> Hint:
    """The hints of a request body; fields of another form than their API's say nothing."""
    hints = raw.get("nvext")
    agent = hints.get("agent_hints") if isinstance(hints, dict) else None
    control = hints.get("session_control") if isinstance(hints, dict) else None
    found = [*_marked_s(raw), *_retention_s(raw)]
    comes = isinstance(agent, dict) and agent.get("speculative_prefill") is True
    is_over = isinstance(control, dict) and control.get("action") == "close"
    if not found and not comes and not is_over:
        return NO_HINT
    return Hint(max(found, default=None), is_over, comes)


def _retention_s(raw: Mapping[str, Any]) -> Iterator[float]:
    value = raw.get("prompt_cache_retention")
    if value in {"in_memory", "in-memory"}:
        yield USUAL_TTL_S
    elif isinstance(value, str) and (seconds := _seconds(value)) is not None:
        yield seconds


def _marked_s(raw: Mapping[str, Any]) -> Iterator[float]:
    """The times to live of the marks at the places where clients put the last one."""
    for holder in (raw, _last(raw.get("tools")), _last(raw.get("system")), _last_block(raw)):
        mark = holder.get("cache_control") if isinstance(holder, Mapping) else None
        if isinstance(mark, dict) and mark.get("type") == "ephemeral":
            ttl = mark.get("ttl")
            seconds = _seconds(ttl) if isinstance(ttl, str) else None
            yield USUAL_TTL_S if seconds is None else seconds


def _last(listed: object) -> object:
    return listed[-1] if isinstance(listed, list) and listed else None


def _last_block(raw: Mapping[str, Any]) -> object:
    message = _last(raw.get("messages"))
    return _last(message.get("content")) if isinstance(message, dict) else None


def _seconds(text: str) -> float | None:
    match = _TTL.match(text)
    return None if match is None else int(match[1]) * _UNITS[match[2]]
