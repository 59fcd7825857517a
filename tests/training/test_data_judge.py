"""The judge of answers."""

import json

import pytest

from training.data import Call, ExpectedAnswer, judge, judge_raw, split_calls, without_reasoning

WEATHER = ExpectedAnswer("tool", calls=(Call("get_weather", {"city": "Oslo", "days": 2}),))


def _called(name: str, arguments: object) -> list[dict[str, object]]:
    return [{"type": "function", "function": {"name": name, "arguments": arguments}}]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>\nhm\n</think>\n\nYes.", "Yes."),
        ("Yes.", "Yes."),
        ("hm</think>Yes.", "Yes."),
        ("<think>for ever", ""),
    ],
)
def test_reasoning_does_not_count(text: str, rest: str) -> None:
    """Only the text after the reasoning is the answer."""
    assert without_reasoning(text) == rest


@pytest.mark.parametrize(
    ("answer", "ok"),
    [
        ("Yes.", True),
        ("Yes", True),
        (" Yes.\n", True),
        ("No.", False),
        ("yes.", False),
        ("", False),
    ],
)
def test_text_is_exact_but_for_space_and_the_last_stop(answer: str, ok: bool) -> None:
    """White space and a last full stop make no difference; letters do."""
    assert judge(ExpectedAnswer("text", texts=("Yes.",)), answer).ok is ok


def test_parts_may_be_asked_for_or_forbidden() -> None:
    """Kind "contains" wants all of its texts and none of the absent ones."""
    check = ExpectedAnswer("contains", texts=("12", "apples"), absent=("13",))
    assert judge(check, "There are 12 apples.").ok
    assert not judge(check, "There are 12 or 13 apples.").ok


@pytest.mark.parametrize("as_text", [True, False])
def test_a_right_call_is_right_in_both_forms(as_text: bool) -> None:
    """Arguments may be JSON text or an object, in any order of keys; 2.0 is 2."""
    arguments = {"days": 2.0, "city": "Oslo"}
    given = json.dumps(arguments) if as_text else arguments
    verdict = judge(WEATHER, "", _called("get_weather", given))
    assert verdict.ok
    assert verdict.valid_tool is True
    assert verdict.right_tool is True


@pytest.mark.parametrize(
    ("name", "arguments", "valid", "right_tool"),
    [
        ("get_weather", '{"city": "Rome", "days": 2}', True, True),
        ("get_weather", '{"city": "Oslo"}', True, True),
        ("get_time", '{"city": "Oslo", "days": 2}', True, False),
        ("get_weather", '{"city": "Oslo", ', False, True),
        ("get_weather", '{"city": "Oslo", "days": true}', True, True),
    ],
)
def test_wrong_calls(name: str, arguments: str, valid: bool, right_tool: bool) -> None:
    """A call may be wrong in its form, its tool or its arguments, and each is told apart."""
    verdict = judge(WEATHER, "", _called(name, arguments))
    assert not verdict.ok
    assert verdict.valid_tool is valid
    assert verdict.right_tool is right_tool


def test_text_instead_of_a_call_is_wrong() -> None:
    """When a call is wanted, an answer without one has the wrong tool, not a wrong form."""
    verdict = judge(WEATHER, "It is warm.")
    assert not verdict.ok
    assert verdict.right_tool is False
    assert verdict.valid_tool is None


def test_a_call_instead_of_text_is_wrong() -> None:
    """When a text is wanted, a call makes the answer wrong, whatever it says."""
    verdict = judge(ExpectedAnswer("text", texts=("Yes.",)), "Yes.", _called("f", "{}"))
    assert not verdict.ok
    assert verdict.right_tool is None


def test_two_calls_in_any_order() -> None:
    """The order of parallel calls makes no difference, their number does."""
    check = ExpectedAnswer("tool", calls=(Call("f", {"a": 1}), Call("f", {"a": 2})))
    one, two = _called("f", {"a": 1}), _called("f", {"a": 2})
    assert judge(check, "", two + one).ok
    assert not judge(check, "", one + one).ok
    assert not judge(check, "", one).ok


def test_raw_text_is_read_as_the_gateway_does() -> None:
    """The model's own text is split into calls and the rest; a broken call stays text."""
    raw = (
        "<think>\nhm\n</think>\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    )
    assert judge_raw(WEATHER, raw).ok
    broken = '<tool_call>\n{"name": "get_weather", "arg\n</tool_call>'
    assert split_calls(broken)[1] == []
    assert judge_raw(WEATHER, broken).valid_tool is False
