"""Fields of a chat that may add costs which no price of tokens covers.

Owns which those are at common providers: other classes of service, lists of other models, tools and
searches that the provider runs and charges by the call, answers that are thrown away. Must not know
limits.
"""

from collections.abc import Container, Mapping
from typing import Any, Final

_MODELS: Final = ("models", "route", "plugins", "web_search_options", "search_parameters")
"""OpenRouter's lists of models and paid plugins, OpenAI's and xAI's searches."""
_USUAL: Final[Mapping[str, tuple[object, ...]]] = {
    "service_tier": ("auto", "default", "standard", "standard_only", "on_demand", "flex", "batch"),
    "speed": ("standard", "normal"),
}
"""Values with the usual price or a lower one."""
_RUN_BY_CLIENT: Final = (None, "function", "custom")


def beyond_price(raw: Mapping[str, Any], num_choices: int, own: Container[str]) -> str:
    """The first field of the request by which it may cost more; "" if there is none. Fields in
    `own` are set by the operator, who knows their cost.
    """
    for name in _MODELS:
        if raw.get(name) and name not in own:
            return name
    for name, usual in _USUAL.items():
        if raw.get(name) is not None and raw[name] not in usual and name not in own:
            return name
    best_of = raw.get("best_of")
    if isinstance(best_of, int) and best_of > num_choices and "best_of" not in own:
        return "best_of"
    tools = raw.get("tools")
    for at, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        if isinstance(tool, dict) and tool.get("type") not in _RUN_BY_CLIENT and "tools" not in own:
            return f"tools[{at}]"
    return ""
