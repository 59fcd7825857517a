"""The end of an answer: whether it is one.

Owns what the `finish_reason` of a server means. An answer that ends by the server's own failure, by
an unknown reason or without one is not whole, however orderly its bytes end. Must not know
chunks, bodies or APIs.
"""

from enum import Enum, auto
from typing import Final


class End(Enum):
    """How a choice has ended. `BROKEN`: the server did not finish it."""

    STOPPED = auto()
    LENGTH = auto()
    CALLS = auto()
    FILTERED = auto()
    BROKEN = auto()


# Each answer is compared with all of them, and a member is found slowly by its class.
STOPPED: Final = End.STOPPED
LENGTH: Final = End.LENGTH
CALLS: Final = End.CALLS
FILTERED: Final = End.FILTERED
BROKEN: Final = End.BROKEN
CUT_ENDS: Final = frozenset({LENGTH, FILTERED})
"""Ends that may cut the last call, which is none then."""

_ENDS: Final = {
    **dict.fromkeys(
        # The last is Cohere's.
        ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "stop_token", "complete"),
        STOPPED,
    ),
    # The second is Mistral's, the fifth Z.ai's: https://docs.z.ai/api-reference/llm/chat-completion
    # The last two are those of vLLM and Moonshot, which end an answer that repeats itself: another
    # server would repeat the same.
    **dict.fromkeys(
        (
            "length",
            "model_length",
            "max_tokens",
            "max_output_tokens",
            "model_context_window_exceeded",
            "repetition",
            "repeat",
        ),
        LENGTH,
    ),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use", "tool_call"), CALLS),
    # The second word is Z.ai's; the others are Gemini's behind some proxies.
    **dict.fromkeys(
        (
            "content_filter", "sensitive", "safety", "recitation", "refusal", "content_filtered",
            "blocklist", "prohibited_content", "spii", "image_safety", "image_recitation",
            "image_prohibited_content", "model_armor",
            "guardrail_intervened",  # Bedrock's
        ),
        FILTERED,
    ),
}  # fmt: skip


def end_of(reason: str) -> End:
    """What `reason` means. Gemini's have a prefix behind some proxies, and its own API for chats
    writes them behind a kind: `content_filter: RECITATION`.
    """
    kind, _, _ = reason.lower().partition(":")
    return _ENDS.get(kind.removeprefix("finish_reason_"), BROKEN)
