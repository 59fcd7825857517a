"""Thoughts that mention the tags of a call go on; those that forget to end before a call end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.output.answer_format import AnswerFormat, answer_format
from gateway.output.reasoning import REASONING_FORMATS, Split
from gateway.output.tools import TOOL_FORMATS
from tests.fakes.tool_answers import ANSWERS, TOOLS

FORMS = [name for name in sorted(TOOL_FORMATS) if name != "harmony"]


def split(form: str, parts: list[str]) -> tuple[str, str]:
    answer = AnswerFormat(TOOL_FORMATS[form], REASONING_FORMATS["think"])
    splitter = answer.splitter(TOOLS, is_open=True, is_past=False)
    splits = [*map(splitter.push, parts), splitter.flush()]
    return "".join(one.reasoning for one in splits), "".join(one.answer for one in splits)


@pytest.mark.parametrize("form", FORMS)
def test_a_mention_of_a_tag_is_no_call(form: str) -> None:
    """A mention of a tag is no call: in any format the thoughts go on to their end."""
    for marker in TOOL_FORMATS[form].markers:
        for said in (f"I write {marker} and go on", f"{marker}", f"`{marker}` {marker}{{x}} so"):
            text = f"{said}</think>\n\nDone."
            assert split(form, [text]) == (said, "Done.")
            assert split(form, list(text)) == (said, "Done.")


@pytest.mark.parametrize(
    "said",
    [
        "the form is <function=name> with <parameter=x>, then",
        "<function=name><parameter=a>1</parameter></function>",
        "<tool_call>\n<function=example><parameter=a>\n1",
        "I call <function=f> next",
        "<function=f",
        "<tool_call> is the tag",
    ],
)
def test_only_tools_of_the_request_begin_a_call_in_thoughts(said: str) -> None:
    """An example of the format names none, and a name alone begins none."""
    for parts in ([f"{said}</think>Done."], list(f"{said}</think>Done.")):
        assert split("qwen3_coder", parts) == (said, "Done.")


@pytest.mark.parametrize(
    "answer",
    [one for one in ANSWERS if len(one.seen) == 1 and not isinstance(one.seen[0], str)],
    ids=lambda one: f"{one.form}-{one.text[:30]!r}",
)
def test_a_call_ends_thoughts_that_were_not_closed(answer: object) -> None:
    """One of a tool of the request, in every format that has tags."""
    form, text = answer.form, answer.text  # type: ignore[attr-defined]
    if form == "harmony" or not text.startswith(TOOL_FORMATS[form].markers):
        return
    name = answer.seen[0][0]  # type: ignore[attr-defined]
    if name not in {"f", "g"}:
        return
    expected = ("I call it.", text)
    assert split(form, [f"I call it. {text}"]) == expected
    assert split(form, list(f"I call it. {text}")) == expected


@given(
    st.sampled_from(["hermes", "qwen3_coder", "glm", "kimi_k2", "minimax_m3", "gemma4"]),
    st.data(),
)
def test_every_split_of_thoughts_says_the_same(form: str, data: st.DataObject) -> None:
    """Tags, calls and ends in any order."""
    texts = [one.text for one in ANSWERS if one.form == form]
    pieces = st.sampled_from(
        [*TOOL_FORMATS[form].tags, *texts, "</think>", "<", "</", " ", "\n", "a", '{"name": "f"']
    )
    parts = data.draw(st.lists(pieces, max_size=7))
    text = "".join(parts)
    whole = split(form, [text])
    assert split(form, parts) == whole
    assert split(form, list(text)) == whole


def test_families_of_thoughts() -> None:
    """Tags of late 2026's families: what opens, closes and skips them."""
    gemma = answer_format("<|channel>thought\n<channel|> <|tool_call>call:")
    assert gemma.reasoning is REASONING_FORMATS["gemma4"]
    assert gemma.is_opened_by("<|turn>model\n<|channel>thought\n")
    assert gemma.past_reasoning("<|turn>model\n") == "<|channel>thought\n<channel|>"
    assert gemma.past_reasoning("<|turn>model\n<|channel>thought\n<channel|>") == ""
    assert gemma.past_reasoning("<|channel>thought\n") == "\n<channel|>"
    minimax = answer_format("<mm:think> </mm:think> ]<]minimax[>[")
    assert minimax.past_reasoning("ai\n") == "</mm:think>"
    assert minimax.past_reasoning("ai\n</mm:think>") == ""
    splitter = minimax.splitter((), is_open=False, is_past=False)
    assert splitter.push("</mm:think>Hi") == Split("", "Hi")
    splitter = minimax.splitter((), is_open=False, is_past=False)
    assert splitter.push("<mm:think>Hm</mm:think>Hi") == Split("Hm", "Hi")
    apertus = answer_format("<|inner_prefix|> <|inner_suffix|> <|tools_prefix|>")
    assert apertus.past_reasoning("<|assistant_start|>") == "<|inner_prefix|><|inner_suffix|>"
