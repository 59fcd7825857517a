"""Every format's answers, however the stream is cut."""

import json
from itertools import count, pairwise

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.output.tools.parser import MAX_HELD, ToolEvent
from tests.fakes.tool_answers import ANSWERS, TOOLS, Answer, Call


def parser_of(form: str, *, is_single: bool = False) -> ToolParser:
    drawn = count(1)
    draw = lambda n: next(drawn).to_bytes(n, "little")  # noqa: E731
    return ToolParser(TOOL_FORMATS[form], draw, TOOLS, is_single=is_single)


def events_of(form: str, chunks: list[str], *, is_cut: bool = False) -> list[ToolEvent]:
    parser = parser_of(form)
    events = [event for chunk in chunks for event in parser.push(chunk)]
    return events + parser.flush(is_cut=is_cut)


def joined(events: list[ToolEvent], *, unique_ids: bool = True) -> list[str | Call]:
    """Text and (name, arguments) in order; events are checked for their order and numbers."""
    seen: list[str | Call] = []
    ids: list[str] = []
    is_open = False
    for event in events:
        match event:
            case TextDelta(text=text):
                assert not is_open
                assert text
                if seen and isinstance(seen[-1], str):
                    seen[-1] += text
                else:
                    seen.append(text)
            case ToolCallStart():
                assert not is_open
                assert event.call_index == len(ids)
                ids.append(event.id)
                seen.append((event.name, ""))
                is_open = True
            case ToolCallArguments(text=text):
                assert is_open
                assert event.call_index == len(ids) - 1
                last = seen[-1]
                assert isinstance(last, tuple)
                seen[-1] = (last[0], last[1] + text)
            case ToolCallEnd():
                assert is_open
                is_open = False
    assert not is_open
    assert not unique_ids or len(set(ids)) == len(ids)
    return seen


def read(form: str, chunks: list[str], *, is_cut: bool = False) -> list[str | Call]:
    return joined(events_of(form, chunks, is_cut=is_cut))


def cuts_of(text: str, at: list[int]) -> list[str]:
    bounds = [0, *sorted(at), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one.form}-{one.text[:40]!r}")
def test_a_lone_call_is_the_last_of_its_answer(answer: Answer) -> None:
    """Where one call is wanted, what follows it is dropped, wherever the stream is split."""
    expected = list(answer.seen)
    calls = [at for at, one in enumerate(expected) if not isinstance(one, str)]
    has_more = bool(calls) and calls[0] + 1 < len(expected)
    for chunks in ([answer.text], list(answer.text)):
        parser = parser_of(answer.form, is_single=True)
        events = [event for chunk in chunks for event in parser.push(chunk)]
        assert parser.is_full or not has_more
        assert joined(events + parser.flush()) == expected[: calls[0] + 1 if calls else None]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one.form}-{one.text[:40]!r}")
def test_every_split_reads_the_same(answer: Answer) -> None:
    """Calls and text come out as expected wherever the stream is split, even in characters."""
    expected = list(answer.seen)
    assert read(answer.form, [answer.text]) == expected
    assert read(answer.form, list(answer.text)) == expected
    for cut in range(1, len(answer.text)):
        assert read(answer.form, [answer.text[:cut], answer.text[cut:]]) == expected


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one.form}-{one.text[:40]!r}")
def test_every_end_of_an_answer_is_an_end(answer: Answer) -> None:
    """Broken off anywhere, text that became no call is whole and arguments are those of the whole
    answer, as far as they go, or completed.
    """
    for end in range(len(answer.text) + 1):
        text = answer.text[:end]
        for is_cut in (False, True):
            seen = read(answer.form, [text], is_cut=is_cut)
            assert seen == read(answer.form, list(text), is_cut=is_cut)
            if all(isinstance(item, str) for item in seen):
                assert "".join(map(str, seen)) == text


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one.form}-{one.text[:40]!r}")
def test_the_last_call_is_whole_or_said_to_break_off(answer: Answer) -> None:
    """Wherever the model ends. What breaks off is the beginning of JSON, as official clients read
    it: theirs raises for anything else.
    """
    for end in range(len(answer.text) + 1):
        parser = parser_of(answer.form)
        events = [*parser.push(answer.text[:end]), *parser.flush()]
        calls = [item for item in joined(events) if not isinstance(item, str)]
        for number, call in enumerate(calls):
            text = call[1] or "{}"
            assert isinstance(jiter.from_json(text.encode(), partial_mode=True), dict)
            is_broken = parser.broke_off and number == len(calls) - 1
            assert is_broken or isinstance(json.loads(text), dict)


FRAGMENTS = st.sampled_from(
    [
        *{tag for one in TOOL_FORMATS.values() for tag in one.tags},
        *{answer.text for answer in ANSWERS},
        *{answer.text[: len(answer.text) // 2] for answer in ANSWERS},
        "\ufffd", "🙂", "<|im_end|>", "<|im_start|>system\n", "</s>", "[/INST]", "\x00", "\ufdd0",
        '"', "'", "{", "}", "[", "]", "\\", "\\u", " ", "\n", "x", "<", "<｜", ",", ":", "```",
        '{"name": "f", ', '"arguments": {', "null", "-1", " " * 300, "functions.f:0", "f",
    ]
)  # fmt: skip
PIECES = st.lists(st.one_of(FRAGMENTS, st.text(max_size=5)), max_size=8)
FORMS = st.sampled_from(sorted(TOOL_FORMATS))


@given(FORMS, PIECES, st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_any_text_reads_the_same_in_any_pieces(
    form: str, pieces: list[str], cuts: list[int], is_cut: bool
) -> None:
    """No text, however broken, reads differently when it comes in pieces; without calls nothing
    of it is lost; and arguments are JSON objects unless they break off at the end.
    """
    text = "".join(pieces)
    whole = read(form, [text], is_cut=is_cut)
    assert read(form, pieces, is_cut=is_cut) == whole
    assert (
        read(form, cuts_of(text, [cut for cut in cuts if cut < len(text)]), is_cut=is_cut) == whole
    )
    assert read(form, list(text), is_cut=is_cut) == whole
    calls = [item for item in whole if isinstance(item, tuple)]
    if not calls:
        assert "".join(map(str, whole)) == text
    for _, arguments in calls[:-1]:
        assert isinstance(json.loads(arguments), dict)


@given(FORMS, st.text())
def test_text_without_markup_passes_at_once(form: str, text: str) -> None:
    """What cannot be markup is not held back, but for white space at its end."""
    parser = parser_of(form)
    text = "." + text.replace("<", "").replace("[", "")
    shown = "".join(event.text for event in parser.push(text) if isinstance(event, TextDelta))
    assert shown == text.rstrip() or len(text) > 200
    assert read(form, [text]) == [text]


@given(FORMS, st.sampled_from(["<", "[", " ", '{"', "[TOOL_CALLS]", "<tool_call>{", "<｜"]))
def test_little_is_held_back(form: str, piece: str) -> None:
    """However long markup does not come to an end, memory is bounded, and nothing is lost."""
    parser = parser_of(form)
    num_shown = 0
    num_pushed = 0
    for _ in range(200):
        chunk = piece * (1000 // len(piece))
        num_pushed += len(chunk)
        events = parser.push(chunk)
        num_shown += sum(len(event.text) for event in events if isinstance(event, TextDelta))
        assert num_pushed - num_shown <= MAX_HELD + 1000
    events = parser.flush()
    num_shown += sum(len(event.text) for event in events if isinstance(event, TextDelta))
    assert num_shown == num_pushed


def test_arguments_come_as_they_are_written() -> None:
    """A long argument is on its way long before the call is complete."""
    parser = parser_of("hermes")
    events = parser.push('<tool_call>{"name": "f", "arguments": {"text": "a long')
    assert events[0] == ToolCallStart(0, 0, "call_01" + "0" * 22, "f")
    assert joined([*events, ToolCallEnd(0, 0)]) == [("f", '{"text": "a long')]
    assert parser.push(" story") == [ToolCallArguments(0, 0, " story")]


def test_ids_are_what_templates_can_show_again() -> None:
    """Kimi's own ids are kept while unique, Mistral's have nine characters, others are drawn."""
    kimi = ANSWERS[-7].text
    ids = [e.id for e in events_of("kimi_k2", [kimi + kimi]) if isinstance(e, ToolCallStart)]
    assert ids[:2] == ["functions.f:0", "functions.g:1"]
    assert all(one.startswith("call_") for one in ids[2:])
    text = "[TOOL_CALLS]g{}[TOOL_CALLS]g[CALL_ID]abcDEF123[ARGS]{}"
    ids = [e.id for e in events_of("mistral", [text]) if isinstance(e, ToolCallStart)]
    assert len(ids[0]) == 9
    assert ids[1] == "abcDEF123"
