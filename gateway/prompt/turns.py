"""The turns of a conversation as templates get them: plain dicts.

Owns how turns are joined and changed. Must not know templates.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

Turn = dict[str, Any]

THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking", "thought")
"""The names that templates have for the reasoning of a turn; transformers fills the first and the
third from each other.
"""


def joined(turns: Sequence[Turn], role: str) -> Turn:
    """One turn, with all texts and calls, and the other fields of the first."""
    text = "\n\n".join(turn["content"] for turn in turns if turn["content"])
    one = {**turns[0], "role": role, "content": text}
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    return with_calls(one, calls) if calls else one


def with_calls(turn: Turn, calls: Sequence[dict[str, Any]]) -> Turn:
    """The turn with these calls instead of its own."""
    return {**turn, "tool_calls": list(calls)}


def without(turn: Turn, *fields: str) -> Turn:
    """The turn without these fields."""
    return {key: value for key, value in turn.items() if key not in fields}


def with_parts(turns: Sequence[Turn], roles: Collection[str]) -> list[Turn]:
    """The turns, where the text of one of these roles is a part in a list."""
    return [
        {**turn, "content": [{"type": "text", "text": turn["content"] or ""}]}
        if turn["role"] in roles
        else turn
        for turn in turns
    ]
