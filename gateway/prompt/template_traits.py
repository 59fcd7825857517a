"""What a chat template can show, found out by rendering a few short conversations.

Owns these conversations, and the forms that conversations take for a template that refuses the
usual one or leaves calls and results out without a word: Gemma 2 has no system turns, Llama 3.1 has
one call in a turn, gpt-oss shows only the first one, and no system turn behind the first, which
those of DeepSeek move to the beginning, before all that is cached. Some read a content only as a
list of parts, as models with pictures. Must not know Jinja.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from gateway.api import json_text
from gateway.prompt.results import ordered_results, paired_turns, single_calls
from gateway.prompt.strict_turns import INSTRUCTIONS, all_text
from gateway.prompt.turns import THOUGHTS, Turn, joined, with_calls, with_parts, without
from gateway.prompt.written_calls import Writer, spelled_calls

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
_PARTS: Final = (
    ((_USER,), "user", "Bb2"),
    ((_SYSTEM, _USER), "system", "Aa1"),
    (_QUESTIONS_AGAIN, "assistant", "Cc3"),
    (_ONE_CALL, "tool", "Dd4"),
)
"""Conversations, each with a role whose content may have to be a list, and a word of it."""
_INSTRUCTED_AGAIN: Final = (
    _SYSTEM,
    {"role": "system", "content": "Kk1"},
    _USER,
    _ANSWER,
    {"role": "system", "content": "Ll2"},
    _LATER_USER,
)
_REMINDED: Final = (_SYSTEM, _USER, _ANSWER, {"role": "system", "content": "Ll2"}, _LATER_USER)
_ORPHAN: Final = (_USER, _ANSWER, _RESULTS[0], _USER)
_SAID: Final = (
    _USER, with_calls({**_SILENT, "content": "Hh8"}, _CALLS[:1]), _RESULTS[0],
    with_calls({**_SILENT, "content": "Mm3"}, _CALLS[1:]), _RESULTS[1], _ANSWER, _LATER_USER,
)  # fmt: skip
_THOUGHT: Final = (
    _USER,
    with_calls({**_SILENT, "content": "Hh8", **dict.fromkeys(THOUGHTS, "Oo9")}, _CALLS[:1]),
    _RESULTS[0],
)
_SAID_WORDS: Final = ("Hh8", "Mm3", "Ff6", "Gg7", "Dd4", "Cc3")
_BEGUN_BY_CALL: Final = (_SYSTEM, *_ONE_CALL[1:], _LATER_USER)
_DEVELOPER: Final = {"role": "developer", "content": "Nn4"}
_DEVELOPERS: Final = (
    [_DEVELOPER, _USER],
    [_SYSTEM, _DEVELOPER, _USER],
    [_SYSTEM, _USER, _ANSWER, _DEVELOPER, _LATER_USER],
)


class Traits(NamedTuple):
    """`forms` are applied to every conversation, in this order. `no_tools` is the value of the
    variable for no tools. `is_usable`: the template renders a question. `shows_calls`: a prompt
    contains the calls of earlier turns, with `spells_calls` as text. `shows_questions`: a prompt
    contains all that users have said. `shows_tools`: a prompt contains the names of tools.
    `loses_developers`: a turn of the developer has to be rendered as a turn of the system.
    """

    forms: tuple[Form, ...] = ()
    no_tools: tuple[()] | None = None
    is_usable: bool = True
    shows_calls: bool = True
    spells_calls: bool = False
    loses_developers: bool = False
    shows_questions: bool = False
    shows_tools: bool = True


def find_traits(show: Show, write: Writer | None = None) -> Traits:
    """The traits of the template by which `show` renders. `write` writes calls as text, in the
    format of the model.
    """
    no_tools: tuple[()] | None = None
    if all(show(turns, None) is None for turns in _QUESTIONS):
        no_tools = ()
        if all(show(turns, no_tools) is None for turns in _QUESTIONS):
            return Traits(is_usable=False)
    probe = _Probe(show, no_tools)
    probe.find_instructions()
    spells = probe.find_calls(write)
    shows_calls = probe.shown(_ONE_CALL, "Ff6", "Dd4")
    if shows_calls:
        probe.find_results()
    return Traits(
        tuple(probe.forms),
        no_tools,
        shows_calls=shows_calls,
        spells_calls=spells,
        loses_developers=probe.loses_developers(),
        shows_questions=probe.shown(_QUESTIONS_AGAIN, "Bb2", "Jj0", tools=no_tools),
        shows_tools=any(probe.shown(turns, "probe") for turns in _QUESTIONS),
    )


def find_parts(show: Show) -> frozenset[str]:
    """The roles whose content the template reads only as a list of parts: of a text it shows
    nothing, or it refuses it.
    """
    roles: frozenset[str] = frozenset()
    for asked, role, word in _PARTS:
        if not _is_read(show(with_parts(asked, roles), None), word):
            more = roles | {role}
            if _is_read(show(with_parts(asked, more), None), word):
                roles = more
    return roles


def shows_said(show: Show, forms: Sequence[Form]) -> bool:
    """Whether what a turn says beside a call is in a prompt, in front of the call."""
    turns: Sequence[Turn] = _SAID[:3]
    for form in forms:
        turns = form(turns)
    text = show(turns, _TOOLS) or ""
    return 0 <= text.find("Hh8") < text.find("Ff6")


def _is_read(text: str | None, word: str) -> bool:
    """Whether the word is in a prompt, except within a list that the template prints unchanged."""
    return text is not None and word in text and f"'{word}'" not in text


class _Probe:
    """Finds the forms that show what the template leaves out or refuses."""

    def __init__(self, show: Show, no_tools: tuple[()] | None) -> None:
        self._show = show
        self._no_tools = no_tools
        self.forms: list[Form] = []

    def shown(self, turns: Sequence[Turn], *words: str, tools: object = _TOOLS) -> bool:
        """Whether all words are in the prompt."""
        text = self._text(turns, tools)
        return text is not None and all(word in text for word in words)

    def _text(self, turns: Sequence[Turn], tools: object) -> str | None:
        for form in self.forms:
            turns = form(turns)
        return self._show(turns, tools)  # type: ignore[arg-type]

    def _comes_first(self, word: str, turns: Sequence[Turn]) -> bool:
        """Whether a prompt has the word before what the user has asked first."""
        text = self._text(turns, self._no_tools) or ""
        return 0 <= text.find(word) < text.find("Bb2")

    def find_instructions(self) -> None:
        """Forms for system turns."""
        # Not for a template that leaves system turns out: Phi-4's reasoning models have a fixed
        # one.
        none = self._no_tools
        self._try(folded_system, [_SYSTEM, _USER], tools=none)
        words = "Kk1", "Ll2"
        self._try(later_instructions, _INSTRUCTED_AGAIN, *words, tools=none, is_silent=True)
        if self._comes_first("Ll2", _REMINDED):
            self.forms.append(later_instructions)
            if self._comes_first("Ll2", _REMINDED):
                self.forms.pop()

    def find_calls(self, write: Writer | None) -> bool:
        """Forms for calls, and what is said beside them; whether they become text."""
        for form in (text_arguments, silent_calls, silent_text_calls):
            self._try(form, _ONE_CALL, "Ff6", "Dd4")
        # The last two forms write all calls as text.
        as_text: list[Form] = [all_text]
        if write is not None:
            as_text.insert(0, partial(spelled_calls, write=write))
        self._try(as_text[0], _ONE_CALL, "Ff6", "Dd4")
        self._try(single_calls, _TWO_CALLS, "Ff6", "Gg7", "Dd4", "Ee5")
        self._try(as_text[-1], _ONE_CALL, "Ff6", "Dd4")
        if not self.shown(_SAID[:3], "Hh8", "Ff6", "Dd4"):
            self._try(said_first, _SAID, *_SAID_WORDS, is_silent=True, at=0)
            if self.forms[:1] == [said_first]:
                self.forms[0] = thought_first
                if not self.shown(_THOUGHT, "Oo9", "Hh8", "Ff6", "Dd4"):
                    self.forms[0] = said_first
        self._try(begun_by_user, _BEGUN_BY_CALL, "Ff6", "Dd4", is_silent=True)
        self._find_late_system()
        return any(form in self.forms for form in as_text)

    def find_results(self) -> None:
        """Forms for results, where calls are shown."""
        self.forms[:0] = _orders(self._show, self.forms)
        self._try(joined_thoughts, _TALKING_CALL)
        if self.shown(_ORPHAN):
            self._try(paired_turns, _ORPHAN, "Dd4")

    def loses_developers(self) -> bool:
        """Whether the template leaves out a turn of the role developer but not a turn of the role
        system.
        """
        none = self._no_tools
        return any(
            not self.shown(turns, "Nn4", tools=none)
            and self.shown(list(map(_of_system, turns)), "Nn4", tools=none)
            for turns in _DEVELOPERS
        )

    def _find_late_system(self) -> None:
        """Add `late_system` if the template needs it. The form does not change a prompt that the
        template writes correctly.
        """
        asked, called = [_SYSTEM, _USER], [_SYSTEM, *_ONE_CALL]
        if not self.shown(asked, "Aa1") or self.shown(called, "Aa1"):
            return
        if self._show(late_system(asked), self._no_tools) == self._show(asked, self._no_tools):
            self._try(late_system, called, "Aa1", "Ff6", "Dd4")

    def _try(
        self,
        form: Form,
        turns: Sequence[Turn],
        *words: str,
        tools: object = _TOOLS,
        is_silent: bool = False,
        at: int | None = None,
    ) -> None:
        """Add the form, behind the others or `at` a place, if it shows the words and nothing else
        does. With `is_silent` only where words are left out; what is refused has stricter forms.
        """
        if self.shown(turns, *words, tools=tools):
            return
        if is_silent and not self.shown(turns, tools=tools):
            return
        before = list(self.forms)
        self.forms.insert(len(before) if at is None else at, form)
        if not self.shown(turns, *words, tools=tools):
            self.forms = before


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
    rest = [{**turn, "role": "user"} if turn["role"] in INSTRUCTIONS else turn for turn in turns]
    count = len(list(takewhile(lambda turn: turn["role"] in INSTRUCTIONS, turns)))
    if not count:
        return rest
    end = count + any(turn["role"] == "user" for turn in rest[count : count + 1])
    return [joined(rest[:end], "user"), *rest[end:]]


def later_instructions(turns: Sequence[Turn]) -> list[Turn]:
    """The system turns at the beginning are one; those behind it are the user's."""
    first = list(takewhile(lambda turn: turn["role"] in INSTRUCTIONS, turns))
    rest = [
        {**turn, "role": "user"} if turn["role"] in INSTRUCTIONS else turn
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


def silent_calls(turns: Sequence[Turn]) -> list[Turn]:
    """A turn with calls and an empty text has no text at all, as OpenAI's API writes it."""
    return [
        {**turn, "content": None} if "tool_calls" in turn and not turn["content"] else turn
        for turn in turns
    ]


def silent_text_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Like `silent_calls` and `text_arguments` together."""
    return silent_calls(text_arguments(turns))


def said_first(turns: Sequence[Turn]) -> list[Turn]:
    """What a turn says beside its calls is a turn before it."""
    first: list[Turn] = []
    for turn in turns:
        if "tool_calls" in turn and turn["content"]:
            first.append({"role": turn["role"], "content": turn["content"]})
            first.append({**turn, "content": ""})
        else:
            first.append(turn)
    return first


def thought_first(turns: Sequence[Turn]) -> list[Turn]:
    """Like `said_first`, but that turn has the thoughts too, because the model wrote them first."""
    first: list[Turn] = []
    for turn in turns:
        if "tool_calls" in turn and turn["content"]:
            first.append(without(turn, "tool_calls"))
            first.append({**without(turn, *THOUGHTS), "content": ""})
        else:
            first.append(turn)
    return first


def begun_by_user(turns: Sequence[Turn]) -> list[Turn]:
    """An empty turn of the user's stands before calls that begin the conversation: with tools, the
    templates of Llama 3 write the first turn's text as the user's, even an assistant's.
    """
    count = len(list(takewhile(lambda turn: turn["role"] in INSTRUCTIONS, turns)))
    if not any("tool_calls" in turn for turn in turns[count : count + 1]):
        return list(turns)
    return [*turns[:count], {"role": "user", "content": ""}, *turns[count:]]


def late_system(turns: Sequence[Turn]) -> list[Turn]:
    """The system turns at the beginning are the beginning of the user's last turn, where
    mistral-common writes them for version 3 of its tokenizer. The template of Mistral Nemo does so
    only if that turn is the last one of all, and leaves them out behind a result. Where the user
    says nothing they are the user's first turn.
    """
    count = len(list(takewhile(lambda turn: turn["role"] in INSTRUCTIONS, turns)))
    rest = list(turns[count:])
    last = next((at for at in reversed(range(len(rest))) if rest[at]["role"] == "user"), None)
    if not count:
        return list(turns)
    if last is None:
        return [joined(turns[:count], "user"), *rest]
    while last and rest[last - 1]["role"] in {"user", *INSTRUCTIONS}:
        last -= 1
    rest[last] = joined([*turns[:count], rest[last]], "user")
    return rest


def _of_system(turn: Turn) -> Turn:
    return {**turn, "role": "system"} if turn["role"] == "developer" else turn


def joined_thoughts(turns: Sequence[Turn]) -> list[Turn]:
    """In a turn with calls, thoughts and text become one field of thoughts, for templates that show
    only one of the two.
    """
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
