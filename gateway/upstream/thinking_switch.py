"""How upstreams are told to think or not to think.

Owns the fields by which servers of chats switch thinking, and which provider has which. Chats pass
as their clients wrote them; a request of another API, whose switch no upstream knows, is told in
the upstream's own way. Must not know the other API.
"""

from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

THINKING: Final = "thinking"
"""The field of the chat that a translated request has: an object with a `type`."""

_HOSTS: Final = {
    "deepseek.com": "thinking",
    "moonshot.ai": "thinking",
    "moonshot.cn": "thinking",
    "z.ai": "thinking",
    "bigmodel.cn": "thinking",
    "aliyuncs.com": "enable_thinking",
    "siliconflow.com": "enable_thinking",
    "siliconflow.cn": "enable_thinking",
    "openrouter.ai": "reasoning",
}


@lru_cache(maxsize=256)
def switch_at(base_url: str) -> str:
    """The switch of a known provider; "none" for any other. Each request asks."""
    host = urlsplit(base_url).hostname or ""
    return next((s for end, s in _HOSTS.items() if host == end or host.endswith("." + end)), "none")


def with_switch(raw: dict[str, Any], switch: str) -> dict[str, Any]:
    """`raw`, a translated request, with thinking switched by `switch` if it says anything about
    thinking.
    """
    given = raw.get(THINKING)
    if not isinstance(given, dict):
        return raw
    rest = {name: value for name, value in raw.items() if name != THINKING}
    thinks = given.get("type") != "disabled"
    match switch:
        case "thinking":
            return {**rest, THINKING: {"type": "enabled" if thinks else "disabled"}}
        case "enable_thinking":
            return {**rest, "enable_thinking": thinks}
        case "reasoning":
            return {**rest, "reasoning": {"enabled": thinks}}
        case "chat_template_kwargs":
            kwargs = rest.get("chat_template_kwargs")
            own = kwargs if isinstance(kwargs, dict) else {}
            switched = {"enable_thinking": thinks, "thinking": thinks}
            return {**rest, "chat_template_kwargs": {**switched, **own}}
        case "reasoning_effort" if not thinks:
            return {**rest, "reasoning_effort": "none"}
        case _:
            return rest
