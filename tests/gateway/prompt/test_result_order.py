"""Results of tools in the order of their calls, for templates that do not write whose they are."""

from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest

from gateway.api import Message
from gateway.api.request import ToolCall
from gateway.prompt.chat_template import ChatTemplate
from gateway.prompt.control_tokens import ControlTokens

NOW = datetime.fromtimestamp(0, UTC)
BARE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
WITH_IDS = (
    "{% for m in messages %}<{{ m.role }}{{ m.tool_call_id }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.id }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)


def _asked(*ids: str) -> Message:
    calls = [ToolCall(one, "weather", f'{{"city": "{one}"}}') for one in ids]
    return Message("assistant", None, tool_calls=tuple(calls))


def _told(call_id: str | None, text: str) -> Message:
    return Message("tool", text, tool_call_id=call_id)


USER = Message("user", "Rome and Oslo?")


def _shown(source: str, *messages: Message) -> str:
    template = ChatTemplate(source, ControlTokens([]))
    return "".join(template.render(messages, (), NOW))


def test_results_come_in_the_order_of_the_calls() -> None:
    """However a client appends them."""
    results = [_told(one, f"r{one}") for one in "abc"]
    shown = {_shown(BARE, USER, _asked(*"abc"), *order) for order in permutations(results)}
    (text,) = shown
    assert text.endswith("<tool>ra<tool>rb<tool>rc")


def test_a_template_with_ids_gets_them_as_they_came() -> None:
    """The model reads whose they are."""
    text = _shown(WITH_IDS, USER, _asked("a", "b"), _told("b", "rb"), _told("a", "ra"))
    assert text.endswith("<toolb>rb<toola>ra")


def test_a_result_may_come_late() -> None:
    """A result may come late, behind what the user or the assistant said meanwhile; and one may be
    missing so far.
    """
    said = Message("user", "Well?")
    late = _shown(BARE, USER, _asked("a", "b"), _told("b", "rb"), said, _told("a", "ra"))
    assert late.endswith("<tool>ra<tool>rb<user>Well?")
    missing = _shown(BARE, USER, _asked("a", "b", "c"), _told("b", "rb"), said)
    assert missing.endswith("<tool><tool>rb<user>Well?")


def test_ids_may_be_used_again() -> None:
    """Ids may be used again, as by servers that number the calls of an answer, and within one
    turn.
    """
    first = (_asked("0", "1"), _told("1", "r1"), _told("0", "r0"))
    second = (_asked("0", "1"), _told("1", "s1"), _told("0", "s0"))
    text = _shown(BARE, USER, *first, *second)
    assert "<tool>r0<tool>r1<assistant>" in text
    assert text.endswith("<tool>s0<tool>s1")
    twice = _shown(BARE, USER, _asked("x", "x"), _told("x", "r0"), _told("x", "r1"))
    assert twice.endswith("<tool>r0<tool>r1")


@pytest.mark.parametrize("given", [None, ""])
def test_results_without_ids_stay_as_they_are(given: Any) -> None:
    """Results without ids stay as they are, and count as those of the calls in their order."""
    text = _shown(BARE, USER, _asked("a", "b"), _told(given, "ra"), _told(given, "rb"))
    assert text.endswith("<tool>ra<tool>rb")


def _called(*names: str) -> Message:
    calls = [ToolCall("", name, f'{{"of": "{name}"}}') for name in names]
    return Message("assistant", None, tool_calls=tuple(calls))


def _named(name: str | None, text: str) -> Message:
    return Message("tool", text, name)


def test_results_without_ids_belong_to_the_calls_that_they_name() -> None:
    """Some clients write names in the place of ids; two results of one function are in order."""
    crossed = _named("b", "rb"), _named("a", "ra")
    assert _shown(BARE, USER, _called("a", "b"), *crossed).endswith("<tool>ra<tool>rb")
    three = _named("b", "rb"), _named("a", "r1"), _named("a", "r2")
    text = _shown(BARE, USER, _called("a", "a", "b"), *three)
    assert text.endswith("<tool>r1<tool>r2<tool>rb")
    other = _named("x", "rx"), _named(None, "ry")
    assert _shown(BARE, USER, _called("a", "b"), *other).endswith("<tool>rx<tool>ry")


def test_a_result_without_an_id_has_no_other_call_s_name() -> None:
    """It had that of the last call without an id; with one function there is no doubt."""
    named = BARE.replace("<{{ m.role }}>", "<{{ m.role }} {{ m.name }}>")
    results = _told("", "ra"), _told("", "rb")
    assert "<tool b>" not in _shown(named, USER, _called("a", "b"), *results)
    assert "<tool a>ra" in _shown(named, USER, _called("a"), results[0])


def test_unknown_and_double_ids_are_named() -> None:
    """The model is told of results with unknown and double ids, which it would take for results of
    other calls. No session ends by them: a client may have compacted the call away.
    """
    text = _shown(
        BARE, USER, _asked("a", "b"), _told("x", "rx"), _told("b", "rb"), _told("a", "ra")
    )
    assert "<tool>ra<tool>rb<tool>[The result of the call x, which is not part of" in text
    double = _shown(BARE, USER, _asked("a"), _told("a", "ra"), _told("a", "again"))
    assert double.endswith("<tool>ra<tool>[A second result of the call a:]\nagain")
    assert _shown(BARE, USER, _told("gone", "old")).endswith("<tool>old")
