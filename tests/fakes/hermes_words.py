"""What Hermes Agent 0.19.0 reads out of the text of an error (its `error_classifier.py` and
`model_metadata.py`): words that it looks for anywhere in the lower-cased text, and how it finds
the window.
"""

import re
from typing import Final

OVERFLOW: Final = (
    "context length", "context size", "context window", "maximum context", "token limit",
    "too many tokens", "reduce the length", "exceeds the limit", "prompt is too long",
    "prompt exceeds max length", "prompt length", "input is too long", "truncating input",
    "max_tokens", "maximum number of tokens", "max_model_len", "maximum model length",
    "slot context", "n_ctx_slot", "input token",
)  # fmt: skip
"""It compresses its history, with loss."""

FATAL: Final = (
    "unknown parameter",
    "unsupported parameter",
    "unrecognized request argument",
    "unknown_parameter",
    "unsupported_parameter",
    "unrecognized_request_argument",
)

NO_MODEL: Final = (
    "model not found", "model_not_found", "does not exist", "no such model", "unknown model",
    "invalid model", "unsupported model", "is not a valid model",
)  # fmt: skip

BUSY: Final = (
    "overloaded", "at capacity", "over capacity", "rate limit", "too many requests",
    "too many concurrent requests", "throttled", "requests per minute", "tokens per minute",
    "try again in", "please retry after", "resource_exhausted",
)  # fmt: skip

BILLING: Final = (
    "insufficient_quota", "insufficient credits", "payment required", "quota", "usage limit",
    "limit exceeded", "credits", "billing",
)  # fmt: skip

OTHER: Final = (
    "payload too large",
    "request entity too large",
    "expected string, got list",
    "timed out",
)

LOST: Final = (
    "connection lost", "connection reset", "connection closed", "network error", "terminated",
    "network connection", "peer closed", "broken pipe", "upstream connect error",
)  # fmt: skip
"""An error in a stream that it takes as a reason to send the same request again."""

ALL: Final = (*OVERFLOW, *FATAL, *NO_MODEL, *BUSY, *BILLING, *OTHER, *LOST)

_WINDOW: Final = tuple(
    map(
        re.compile,
        (
            r"max_model_len\s*(?:is\s*)?[:=(]?\s*(\d{4,})",
            r"maximum model length\s*(?:is\s*)?[:=(]?\s*(\d{4,})",
            r"(?:max(?:imum)?|limit)\s*(?:context\s*)?(?:length|size|window)?\s*(?:is|of|:)?\s*(\d{4,})",
            r"context\s*(?:length|size|window)\s*(?:is|of|:)?\s*(\d{4,})",
            r"(\d{4,})\s*(?:token)?\s*(?:context|limit)",
            r">\s*(\d{4,})\s*(?:max|limit|token)",
            r"(\d{4,})\s*(?:max(?:imum)?)\b",
        ),
    )
)


def words_in(text: str) -> list[str]:
    """The words of `text` that it acts on."""
    lower = text.lower()
    return [word for word in ALL if word in lower]


def window_in(text: str) -> int | None:
    """The window that it takes from `text`."""
    for pattern in _WINDOW:
        if found := pattern.search(text.lower()):
            return int(found[1])
    return None
