"""What a chat template can show, found out by rendering a few short conversations.

Owns these conversations, and the forms that conversations take for a template that refuses the
usual one or leaves calls and results out without a word: Gemma 2 has no system turns, Llama 3.1 has
one call in a turn, gpt-oss shows only the first one, and no system turn behind the first. Must not
know Jinja.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from gateway.api import json_text
from gateway.prompt.results import ordered_results, paired_turns, single_calls
from gateway.prompt.turns import THOUGHTS, Turn, joined, with_calls, without

Form = Callable[[Sequence[Turn]], list[Turn]]
Show = Callable[[Sequence[Turn], Sequence[dict[str, Any]] | None], str | None]
"""Renders turns and tools; None if the template refuses them."""

_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"of": {"type": "string", "description": "d"}},
                "required": ["of"],
            },
        },
    },
)
_SYSTEM: Final = {"role": "system", "content": "Aa1"}
_USER: Final = {"role": "user", "content": "Bb2"}
_QUESTIONS: Final = ([_USER], [_SYSTEM, _USER])
_ANSWER: Final = {"role": "assistant", "content": "Cc3"}
_RESULTS: Final = tuple(
    {"role": "tool", "name": "probe", "tool_call_id": call_id, "content": content}
    for call_id, content in (("probe0001", "Dd4"), ("probe0002", "Ee5"))
)
_CALLS: Final = tuple(
    {"id": call_id, "type": "function", "function": {"name": "probe", "arguments": {"of": value}}}
    for call_id, value in (("probe0001", "Ff6"), ("probe0002", "Gg7"))
)
_SILENT: Final = {"role": "assistant", "content": ""}
_THINKING: Final = {"role": "assistant", "content": "Hh8", **dict.fromkeys(THOUGHTS, "Ii9")}
_ONE_CALL: Final = (_USER, with_calls(_SILENT, _CALLS[:1]), _RESULTS[0])
_TWO_CALLS: Final = (_USER, with_calls(_SILENT, _CALLS), *_RESULTS)
_CROSSED: Final = tuple(
    {**result, "tool_call_id": other["tool_call_id"]}
    for result, other in zip(_RESULTS, reversed(_RESULTS), strict=True)
)
_TALKING_CALL: Final = (_USER, with_calls(_THINKING, _CALLS[:1]), _RESULTS[0])
_LATER_USER: Final = {"role": "user", "content": "Jj0"}
_QUESTIONS_AGAIN: Final = (_USER, _ANSWER, _LATER_USER)
_INSTRUCTED_AGAIN: Final = (
    _SYSTEM,
    {"role": "system", "content": "Kk1"},
    _USER,
    _ANSWER,
    {"role": "system", "content": "Ll2"},
    _LATER_USER,
)
_ORPHAN: Final = (_USER, _ANSWER, _RESULTS[0], _USER)


class Traits(NamedTuple):
    """`forms` are applied to every conversation, in this order. `no_tools` stands for none.
    `is_usable`: it takes a question. `shows_calls`: calls of earlier turns are in a prompt;
    `shows_questions`: all that users have said is.
    """

    forms: tuple[Form, ...] = ()
    no_tools: tuple[()] | None = None
    is_usable: bool = True
    shows_calls: bool = True
    shows_questions: bool = False


def find_traits(show: Show) -> Traits:
    """The traits of the template by which `show` renders."""
    no_tools: tuple[()] | None = None
    if all(show(turns, None) is None for turns in _QUESTIONS):
        no_tools = ()
        if all(show(turns, no_tools) is None for turns in _QUESTIONS):
            return Traits(is_usable=False)
    forms: list[Form] = []

    def shown(turns: Sequence[Turn], *words: str, tools: object = _TOOLS) -> bool:
        """Whether all words are in the prompt."""
        for form in forms:
            turns = form(turns)
        text = show(turns, tools)  # type: ignore[arg-type]
        return text is not None and all(word in text for word in words)

    def try_form(
        form: Form,
        turns: Sequence[Turn],
        *words: str,
        tools: object = _TOOLS,
        is_silent: bool = False,
    ) -> None:
        """With `is_silent` only where words are left out; what is refused has stricter forms."""
        if shown(turns, *words, tools=tools) or (is_silent and not shown(turns, tools=tools)):
            return
        forms.append(form)
        if not shown(turns, *words, tools=tools):
            forms.pop()

    # Not where a system turn is left out: Phi-4's reasoning models have their own.
    try_form(folded_system, [_SYSTEM, _USER], tools=no_tools)
    try_form(later_instructions, _INSTRUCTED_AGAIN, "Kk1", "Ll2", tools=no_tools, is_silent=True)
    try_form(text_arguments, _ONE_CALL, "Ff6", "Dd4")
    try_form(single_calls, _TWO_CALLS, "Ff6", "Gg7", "Dd4", "Ee5")
    shows_calls = shown(_ONE_CALL, "Ff6", "Dd4")
    if shows_calls:
        forms[:0] = _orders(show, forms)
        try_form(joined_thoughts, _TALKING_CALL)
        if shown(_ORPHAN):
            try_form(paired_turns, _ORPHAN, "Dd4")
    shows_questions = shown(_QUESTIONS_AGAIN, "Bb2", "Jj0", tools=no_tools)
    return Traits(tuple(forms), no_tools, shows_calls=shows_calls, shows_questions=shows_questions)


def _orders(show: Show, forms: Sequence[Form]) -> list[Form]:
    """The form for a template that does not show to which call a result belongs."""
    if single_calls in forms:
        return []
    right: Sequence[Turn] = _TWO_CALLS
    crossed: Sequence[Turn] = (*_TWO_CALLS[:2], *_CROSSED)
    for form in forms:
        right, crossed = form(right), form(crossed)
    return [ordered_results] if show(right, _TOOLS) == show(crossed, _TOOLS) else []


def folded_system(turns: Sequence[Turn]) -> list[Turn]:
    """The system turns at the beginning become a part of the user's first turn; those behind it are
    the user's.
    """
    rest = [{**turn, "role": "user"} if turn["role"] in _INSTRUCTIONS else turn for turn in turns]
    count = len(list(takewhile(lambda turn: turn["role"] in _INSTRUCTIONS, turns)))
    if not count:
        return rest
    end = count + any(turn["role"] == "user" for turn in rest[count : count + 1])
    return [joined(rest[:end], "user"), *rest[end:]]


def later_instructions(turns: Sequence[Turn]) -> list[Turn]:
    """The system turns at the beginning are one; those behind it are the user's."""
    first = list(takewhile(lambda turn: turn["role"] in _INSTRUCTIONS, turns))
    rest = [
        {**turn, "role": "user"} if turn["role"] in _INSTRUCTIONS else turn
        for turn in turns[len(first) :]
    ]
    return [joined(first, "system"), *rest] if len(first) > 1 else [*first, *rest]


def text_arguments(turns: Sequence[Turn]) -> list[Turn]:
    """The arguments of every call are JSON text."""
    return [
        with_calls(turn, [_with_text(call) for call in turn["tool_calls"]])
        if "tool_calls" in turn
        else turn
        for turn in turns
    ]


def joined_thoughts(turns: Sequence[Turn]) -> list[Turn]:
    """A turn that calls says what it thinks or what it tells, not both: both are its thoughts."""
    return [_thinking(turn) if "tool_calls" in turn else turn for turn in turns]


def _thinking(turn: Turn) -> Turn:
    thoughts = turn.get(THOUGHTS[0])
    if not thoughts or not turn["content"]:
        return turn
    text = f"{thoughts}\n\n{turn['content']}"
    return {**without(turn, *THOUGHTS), "content": "", **dict.fromkeys(THOUGHTS, text)}


def _with_text(call: Turn) -> Turn:
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": json_text(function["arguments"])}}


_INSTRUCTIONS: Final = frozenset({"system", "developer"})
