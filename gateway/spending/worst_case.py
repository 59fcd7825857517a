"""How much a cloud request can use at most.

Owns the bound on tokens that a reservation is made of. It must hold for any tokenizer, so it counts
bytes: byte-level vocabularies make no token of less than one. Must not know prices.
"""

from typing import Any, Final

import msgspec

from gateway.api import ChatRequest

TEMPLATE_TOKENS: Final = 512
"""What a provider's template may add on its own, as a system text around tools."""

PART_TOKENS: Final = 32_768
"""An image, a sound or a file, whose tokens do not follow from the length of its address."""

CAP_TOKENS: Final = 48
"""By at most so much a cap that the client adds makes its body longer."""

_CAPS: Final = ("max_tokens", "max_completion_tokens")
_TEXT_PARTS: Final = frozenset({"text", "refusal"})
_encode = msgspec.json.Encoder().encode


def prompt_bound(request: ChatRequest) -> int:
    """At least the tokens of the prompt, whoever counts them."""
    return len(_encode(request.raw)) + TEMPLATE_TOKENS + PART_TOKENS * _num_parts(request.raw)


def output_bound(request: ChatRequest, model_bound: int | None) -> int | None:
    """At least the tokens of all choices; None if neither the request nor the configuration (by
    `model_bound`, for one choice) says.
    """
    caps = [cap for name in _CAPS if isinstance(cap := request.raw.get(name), int)]
    bounds = [bound for bound in (max(caps, default=None), model_bound) if bound is not None]
    return min(bounds) * request.n if bounds else None


def _num_parts(raw: dict[str, Any]) -> int:
    """The parts of messages that are not text; the request is checked already."""
    contents = [message.get("content") for message in raw["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(part["type"] not in _TEXT_PARTS for part in parts)
