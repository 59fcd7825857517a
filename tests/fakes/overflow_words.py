"""By which words clients know a prompt that is larger than the window, read in their code: each
then makes its history shorter, or raises an exception of its own. Versions are those of
`tests/clients/clients.toml` and of `docs/clients`.

A client is asked with the text of the error, and with the type and the code that its SDK gives it
beside the text. What Hermes Agent reads stands in `hermes_words`.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple


class Told(NamedTuple):
    """An error as a client has it. openai 3 puts the text alone into its exception's words."""

    text: str
    code: str | None
    type: str


Knows = Callable[[Told], bool]


def _any_of(*patterns: str) -> Knows:
    """Whether one of these stands in the text, in any case of letters."""
    compiled = [re.compile(one, re.IGNORECASE) for one in patterns]
    return lambda told: any(one.search(told.text) for one in compiled)


def _code_or(knows: Knows) -> Knows:
    return lambda told: told.code == "context_length_exceeded" or knows(told)


_PI: Final = _any_of(
    r"prompt (?:is )?too long",
    r"exceeds the context window",
    r"reduce the length of the messages",
    r"maximum context length is \d+ tokens",
    r"context[_ ]length[_ ]exceeded",
    r"too many tokens",
    r"token limit exceeded",
)

CHAT: Final[dict[str, Knows]] = {
    "pi 1.6.0": _PI,
    "OpenClaw 2026.9.6": _PI,
    "opencode 1.18.33": _any_of(
        r"exceeds the context window",
        r"reduce the length of the messages",
        r"maximum context length is \d+ tokens",
        r"context[_ ]length[_ ]exceeded",
    ),
    "Claude Code 2.1.332, over a chat": _any_of("maximum context length", "exceeds the context"),
    "Cline 3.0.65": _code_or(
        _any_of(r"\bcontext\s*(?:length|window|limit)\b", r"\bmaximum\s*context\b")
    ),
    "Continue 1.5.47": _any_of("maximum context length", "context_length_exceeded"),
    "qwen-code 0.24.4": _any_of(r"\bmaximum context length\b"),
    "mistral-vibe 3.0.2": _any_of("maximum context length", "prompt is too long"),
    "agno 3.1.10": lambda told: told.code == "context_length_exceeded",
    "strands-agents 1.62.0": _code_or(_any_of("maximum context length", "context length")),
    "crewai 1.15.30": _any_of("maximum context length", "context_length_exceeded"),
    "langchain-openai 1.7.4": _any_of("context_length_exceeded", "prompt is too long"),
    "deepagents 0.7.32": _any_of("context_length_exceeded", "maximum context length"),
    "pydantic-ai 2.68.0": _code_or(_any_of("maximum context length")),
    "litellm 1.110.2": _any_of("this model's maximum context length is"),
    "codex 0.171.0, in a stream": lambda told: told.code == "context_length_exceeded",
}

ONLY_BY_NUMBERS: Final[dict[str, Knows]] = {
    "qwen-code 0.24.4": _any_of(
        r"maximum context length is\s*\d[\d,]*\s*tokens?[\s\S]*?(?:resulted in|requested|used)"
        r"\s*\d[\d,]*\s*tokens?"
    ),
}
"""Clients that take from the text how much is too much."""

MESSAGES: Final[dict[str, Knows]] = {
    "Claude Code 2.1.332": _any_of(r"^prompt is too long: \d+ tokens > \d+ maximum$"),
    "langchain-anthropic 1.7.10": _any_of("prompt is too long"),
    "strands-agents 1.62.0": _any_of("prompt is too long:"),
    "pydantic-ai 2.68.0": _any_of("prompt is too long"),
    "OpenClaw 2026.9.6": _any_of(r"prompt is too long:\s*[\d,]+\s+tokens\s*>\s*[\d,]+\s+maximum"),
}

RATE: Final[Knows] = _any_of(r"rate limit", r"too many requests", r"per[\s_-]?minute")
"""For pi, opencode, Cline and strands-agents a text with these words is not an overflow, whatever
else it says.
"""
