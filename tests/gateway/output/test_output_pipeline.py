"""From token ids to events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import (
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from gateway.output.detokenizer import ByteDetokenizer, ByteTable
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import OutputEvent, OutputPipeline
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import TOOL_FORMATS, ToolParser
from protocol.messages import TokenLogprobs
from tests.fakes.text_files import make_tokenizer

TOKENIZER = make_tokenizer()
TABLE = ByteTable(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def letters(text: str) -> list[int]:
    """One token per ASCII letter."""
    return [TOKENIZER.token_to_id(char) for char in text]


def pipeline(
    *stops: str, tools: bool = False, index: int = 0, is_single: bool = False
) -> OutputPipeline:
    hermes = TOOL_FORMATS["hermes"]
    parser = ToolParser(hermes, bytes, index=index, is_single=is_single) if tools else None
    matcher = StopMatcher(stops)
    return OutputPipeline(
        ByteDetokenizer(TABLE), matcher, parser, index=index, token_bytes=TABLE, silent_ids={END}
    )


def text_of(events: list[OutputEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_tokens_become_text_and_a_finish() -> None:
    """Plain output is text deltas of the choice, then one finish with the worker's reason."""
    out = pipeline(index=2)
    assert out.push(ids_of("hello")) == [TextDelta(2, "hello")]
    assert out.finish("length") == [ChoiceFinished(2, "length")]


def test_a_push_without_text_says_nothing() -> None:
    """Half a character and silent tokens make no event, but count."""
    out = pipeline()
    assert out.push([*letters("ðŁ"), END]) == []
    assert out.num_unread == 0
    assert out.finish("stop") == [TextDelta(0, "\ufffd"), ChoiceFinished(0, "stop")]


def test_usage_counts_through_the_token_that_completes_the_stop() -> None:
    """Tokens behind a stop string are neither shown nor counted."""
    out = pipeline("bc")
    assert text_of(out.push(letters("abcdef"))) == "a"
    assert (out.stopped, out.num_unread) == (True, 3)
    assert out.push(letters("gh")) == []
    assert out.num_unread == 5
    assert out.finish("length") == [ChoiceFinished(0, "stop", "bc")]


def test_held_text_comes_with_the_finish() -> None:
    """The start of a stop string that never came is shown at the end."""
    out = pipeline("END")
    assert text_of(out.push(letters("xEN"))) == "x"
    assert out.finish("length") == [TextDelta(0, "EN"), ChoiceFinished(0, "length")]


def test_a_stop_may_be_completed_by_the_flush() -> None:
    """A broken last character can be the stop string, too."""
    out = pipeline("\ufffd")
    assert out.push(letters("að")) == [TextDelta(0, "a")]
    assert out.finish("length") == [ChoiceFinished(0, "stop", "\ufffd")]


def test_tool_calls_change_the_reason() -> None:
    """A stop after calls is tool_calls; a call starts, has its arguments and ends."""
    out = pipeline(tools=True)
    events = [event for token in ids_of(CALL) for event in out.push([token])] + out.finish("stop")
    arguments = [event.text for event in events if isinstance(event, ToolCallArguments)]
    assert "".join(arguments) == '{"a": 1}'
    assert len(arguments) > 1
    assert [event for event in events if not isinstance(event, ToolCallArguments)] == [
        ToolCallStart(0, 0, "call_" + "0" * 24, "f"),
        ToolCallEnd(0, 0),
        ChoiceFinished(0, "tool_calls"),
    ]


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        (',"b"', ChoiceFinished(0, "stop", ',"b"')),
        ("</tool_call>", ChoiceFinished(0, "tool_calls")),
    ],
)
def test_a_stop_within_a_call_cuts_it(stop: str, end: ChoiceFinished) -> None:
    """What was written so far looks whole, and is half a call; its own end tag cuts nothing."""
    out = pipeline(stop, tools=True)
    text = '<tool_call>\n{"name": "f", "arguments": {"a":1,"b":2}}\n</tool_call>'
    events = [*out.push(ids_of(text)), *out.finish("stop")]
    assert [one for one in events if isinstance(one, ToolCallEnd)] == [
        ToolCallEnd(0, 0, end.reason == "tool_calls")
    ]
    assert events[-1].reason == end.reason  # type: ignore[union-attr]


def test_a_lone_call_ends_the_answer() -> None:
    """Where one call is wanted, the work stops with it, and what comes all the same is no text."""
    out = pipeline(tools=True, is_single=True)
    tokens = ids_of(f"Now {CALL} {CALL} done")
    taken = []
    while not out.stopped:
        taken += out.push([tokens.pop(0)])
    assert len(tokens) > len(ids_of(CALL))
    assert out.push(tokens[:3]) == []
    assert (out.num_unread, out.plain) == (3, None)
    taken += out.finish("stop")
    assert text_of(taken) == "Now"
    assert [event for event in taken if isinstance(event, ToolCallStart)] == [
        ToolCallStart(0, 0, "call_" + "0" * 24, "f")
    ]
    assert taken[-1] == ChoiceFinished(0, "tool_calls")


def test_a_cut_answer_stays_cut() -> None:
    """Length is told even after a call, since more was to come."""
    out = pipeline(tools=True)
    out.push(ids_of(CALL + " and"))
    assert out.finish("length")[-1] == ChoiceFinished(0, "length")


def test_a_cut_call_is_not_completed() -> None:
    """Arguments that the limit has cut are not completed, so that no client acts on them; those
    that only lack brackets at an end that the model chose are completed.
    """
    for reason, rest in (("length", ""), ("stop", "}")):
        out = pipeline(tools=True)
        events = out.push(ids_of('<tool_call>{"name": "f", "arguments": {"a": 1'))
        events += out.finish("length" if reason == "length" else "stop")
        texts = [event.text for event in events if isinstance(event, ToolCallArguments)]
        assert "".join(texts).startswith('{"a": ')
        assert "".join(texts).endswith("}") == bool(rest)


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ('"a": "half', ChoiceFinished(0, "length")),
        ('"a": "half\\', ChoiceFinished(0, "length")),
        ('"a', ChoiceFinished(0, "length")),
        ('"a": "whole"', ChoiceFinished(0, "tool_calls")),
        ('"a": "whole"}}</tool_call> and', ChoiceFinished(0, "tool_calls")),
        ('"a": "half STOP', ChoiceFinished(0, "stop", "STOP")),
    ],
)
def test_a_call_that_breaks_off_is_no_reason_to_make_calls(
    written: str, ends: ChoiceFinished
) -> None:
    """A call that breaks off gives no reason to make calls, also where the model ended by itself:
    clients parse the arguments of "tool_calls".
    """
    out = pipeline("STOP", tools=True)
    events = out.push(ids_of('<tool_call>{"name": "f", "arguments": {' + written))
    assert (events + out.finish("stop"))[-1] == ends


def test_without_tools_markup_is_text() -> None:
    """A client that asked for no tools sees what the model wrote."""
    out = pipeline()
    assert text_of(out.push(ids_of(CALL)) + out.finish("stop")) == CALL


def logprobs(ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(-0.5, ((token_id, -0.5), (END, -2.0))) for token_id in ids]


def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    """Entries wait until their character is whole, spelled as text and bytes."""
    out = pipeline()
    ids = letters("aÃ©")
    first = out.push(ids[:2], logprobs(ids[:2]))
    second = out.push(ids[2:], logprobs(ids[2:]))
    entries = [event.logprobs for event in [*first, *second] if isinstance(event, TextDelta)]
    assert [[entry.token for entry in some or ()] for some in entries] == [
        ["a", "\ufffd"],
        ["\ufffd"],
    ]
    assert entries[0]
    assert entries[0][1].bytes == [0xC3]
    assert [top.token for top in entries[0][0].top_logprobs] == ["a", "<|im_end|>"]


def test_logprobs_of_a_stop_string_are_not_shown() -> None:
    """Entries are of the tokens whose text is shown, and of no end token."""
    out = pipeline("cd")
    ids = letters("abcde")
    events = out.push(ids, logprobs(ids)) + out.finish("stop")
    shown = [e.logprobs for e in events if isinstance(e, TextDelta) and e.logprobs]
    assert [entry.token for entry in shown[0]] == ["a", "b"]
    assert len(shown) == 1


def test_logprobs_of_calls_are_not_lost() -> None:
    """Tokens that became a tool call have their entries in a delta without text."""
    out = pipeline(tools=True)
    ids = ids_of(CALL)
    events = out.push(ids, logprobs(ids)) + out.finish("stop")
    (left,) = [event for event in events if isinstance(event, TextDelta)]
    assert left.text == ""
    assert len(left.logprobs or ()) == len(ids)


@given(st.text("ab<END>🙂", max_size=20), st.integers(0, 30))
def test_every_split_says_the_same(text: str, cut: int) -> None:
    """However tokens are grouped in steps, text, count and reason agree."""
    ids = ids_of(text)
    whole, parts = pipeline("END", "b<"), pipeline("END", "b<")
    at_once = whole.push(ids) + whole.finish("stop")
    in_two = parts.push(ids[:cut]) + parts.push(ids[cut:]) + parts.finish("stop")
    assert text_of(at_once) == text_of(in_two)
    assert whole.num_unread == parts.num_unread
    assert at_once[-1] == in_two[-1]


def test_reasoning_are_told_apart_and_counted() -> None:
    """A block at the start becomes reasoning; its tokens, tags included, are reasoning tokens."""
    out = pipeline(tools=True)
    reasoning, answer = ids_of("<think>\nwell"), ids_of(f"</think>\n\nyes {CALL}")
    events = [*out.push(reasoning), *out.push(answer), *out.finish("stop")]
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["well"]
    assert text_of(events) == "yes"
    assert any(isinstance(event, ToolCallDelta) for event in events)
    assert out.reasoning_tokens == len(reasoning) + 1
    assert out.num_unread == 0


def test_a_prompt_may_open_the_reasoning() -> None:
    """Some templates end the prompt in the opening tag: the answer then starts with reasoning."""
    out = OutputPipeline(
        ByteDetokenizer(TABLE), StopMatcher(()), reasoning=ReasoningSplitter(is_open=True)
    )
    events = [*out.push(ids_of("hm</think>yes")), *out.finish("stop")]
    assert events == [ReasoningDelta(0, "hm"), TextDelta(0, "yes"), ChoiceFinished(0, "stop")]
