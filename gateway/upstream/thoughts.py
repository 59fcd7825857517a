"""Where servers put what a model thinks before its answer.

Owns the places in a message or delta: a text or an object in one of four fields, OpenRouter's list
of details, and Mistral's parts of the content; and which known providers refuse a message with
some of them. Must not know what becomes of the text.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from protocol.reading import objects_in

_TEXTS: Final = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
_HOSTS: Final[dict[str, Literal["reasoning", "none"]]] = {
    ".mistral.ai": "none",  # crush#1590, litellm#30835
    ".cerebras.ai": "reasoning",  # qwen-code#11045
    ".groq.com": "reasoning",  # jan#8136
}


def thought_of(said: Mapping[str, Any]) -> str:
    """The thought in a message or delta; may be empty. Some servers say it in two places at once,
    so the first one counts.
    """
    for name in _TEXTS:
        if text := _text(said.get(name)):
            return text
    details, content = said.get("reasoning_details"), said.get("content")
    if isinstance(details, list) and details:
        return "".join(_text(one.get("text") or one.get("summary")) for one in objects_in(details))
    if isinstance(content, list):
        return "".join(
            _text(part.get("thinking"))
            for part in objects_in(content)
            if part.get("type") == "thinking"
        )
    return ""


@lru_cache(maxsize=256)
def field_at(base_url: str) -> Literal["reasoning", "none"] | None:
    """The name of earlier reasoning at a known provider that refuses other names, and with them the
    second turn of each conversation; None at any other.
    """
    host = f".{urlsplit(base_url).hostname}"
    return next((name for end, name in _HOSTS.items() if host.endswith(end)), None)


def _text(value: object) -> str:
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in objects_in(value))
    if isinstance(value, dict):
        return _text(value.get("text") or value.get("content"))
    return value if isinstance(value, str) else ""
