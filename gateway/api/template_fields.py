"""The fields of a request that become variables of the chat template.

Owns their names in the APIs of several servers, and the effort and the switch of reasoning. Must
not know templates.
"""

from collections.abc import Iterator
from typing import Any, Final

from gateway.api.errors import invalid

TEMPLATE_OWNED: Final = frozenset({"messages", "tools", "add_generation_prompt"})
"""Template variables that the request's own fields decide."""

_THINKING: Final = ("enable_thinking", "think", "thinking")
"""Fields that switch reasoning on or off: Alibaba's, Ollama's, and that of DeepSeek, Z.ai and
Moonshot, which is an object with a `type`.
"""

TEMPLATE_VARIABLES: Final = frozenset(
    {"chat_template_kwargs", "reasoning_effort", "reasoning", *_THINKING}
)
"""Fields that become variables of the template."""
TEMPLATE_FIELDS: Final = frozenset({"chat_template_kwargs", "enable_thinking", "think"})
"""The fields of `TEMPLATE_VARIABLES` that clients send in requests of the other APIs too. No API
defines them.
"""


def template_kwargs(given: dict[str, Any] | None, raw: dict[str, Any]) -> dict[str, Any]:
    """Variables for the template, among them the switches for reasoning of several APIs."""
    kwargs = dict(given or {})
    taken = sorted(TEMPLATE_OWNED & kwargs.keys())
    if taken:
        where = f"chat_template_kwargs.{taken[0]}"
        raise invalid(where, f"'{where}' follows from the rest of the request.")
    effort = _effort(raw)
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    thinks = next((v for v in _switches(raw) if isinstance(v, bool)), None)
    if effort == "none":
        thinks = False
    if thinks is not None:
        # The name in templates of Qwen and GLM, and in those of DeepSeek and Kimi.
        kwargs.setdefault("enable_thinking", thinks)
        kwargs.setdefault("thinking", thinks)
    return kwargs


def _switches(raw: dict[str, Any]) -> Iterator[object]:
    """The values of the fields that switch reasoning."""
    for value in map(raw.get, _THINKING):
        kind = value.get("type") if isinstance(value, dict) else None
        yield kind != "disabled" if isinstance(kind, str) else value
    nested = raw.get("reasoning")
    yield nested.get("enabled") if isinstance(nested, dict) else None


def _effort(raw: dict[str, Any]) -> str | None:
    """The reasoning effort: OpenAI's field, or that of the Responses API and OpenRouter."""
    nested = raw.get("reasoning")
    effort = raw.get("reasoning_effort")
    if effort is None and isinstance(nested, dict):
        effort = nested.get("effort")
    return effort if isinstance(effort, str) else None
