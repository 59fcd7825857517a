"""Stops end the answer, never the thoughts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import ChoiceFinished, ReasoningDelta, TextDelta
from gateway.output import AnswerFormat
from gateway.output.detokenizer import ByteDetokenizer, ByteTable
from gateway.output.reasoning import REASONING_FORMATS, ReasoningSplitter
from gateway.output.sequence_output import OutputEvent, OutputPipeline
from gateway.output.stop_strings import StopMatcher
from protocol.messages import TokenLogprobs
from tests.fakes.text_files import make_tokenizer

TOKENIZER = make_tokenizer()
TABLE = ByteTable(TOKENIZER, frozenset({"<think>", "</think>"}))
THOUGHT = "<think>12 + 7 = 19</think>\n\n"


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def pipeline(
    *stops: str, is_open: bool = False, stop_ids: frozenset[int] = frozenset()
) -> OutputPipeline:
    splitter = ReasoningSplitter(REASONING_FORMATS["think"], is_open=is_open)
    return OutputPipeline(
        ByteDetokenizer(TABLE),
        StopMatcher(stops),
        stop_ids=stop_ids,
        token_bytes=TABLE,
        reasoning=splitter,
    )


def said(events: list[OutputEvent]) -> tuple[str, str, OutputEvent]:
    """The thoughts, the answer and the end."""
    thoughts = "".join(one.text for one in events if isinstance(one, ReasoningDelta))
    answer = "".join(one.text for one in events if isinstance(one, TextDelta))
    return thoughts, answer, events[-1]


def run(out: OutputPipeline, *steps: list[int]) -> tuple[str, str, OutputEvent]:
    events = [event for ids in steps for event in out.push(ids)]
    return said([*events, *out.finish("stop")])


@pytest.mark.parametrize("is_open", [False, True])
def test_a_stop_string_in_the_thoughts_is_text(is_open: bool) -> None:
    """The answer comes, and the stop ends that."""
    text = f"{THOUGHT}It is 19. 1 + 1 is 2."
    ids = ids_of(text.removeprefix("<think>") if is_open else text)
    for steps in ([ids], [[one] for one in ids]):
        out = pipeline("+", is_open=is_open)
        assert run(out, *steps) == ("12 + 7 = 19", "It is 19. 1 ", ChoiceFinished(0, "stop", "+"))


@given(st.integers(0, 60))
def test_usage_is_exact_behind_thoughts(cut: int) -> None:
    """All tokens through the one that completes the stop, none behind it."""
    counted = ids_of(f"{THOUGHT}one +")
    ids = [*counted, *ids_of(" two")]
    out = pipeline("+")
    for step in (ids[:cut], ids[cut:]):
        out.push(step)
    assert (out.stopped, len(ids) - out.num_unread) == (True, len(counted))
    assert out.reasoning_tokens == len(ids_of(THOUGHT.rstrip()))


def test_a_stop_that_spans_the_end_of_the_thoughts_is_none() -> None:
    """The tag is markup: its text is neither in the thoughts nor in the answer."""
    out = pipeline("19</think>", "</think>", "19\n\n")
    assert run(out, ids_of(f"{THOUGHT}yes")) == ("12 + 7 = 19", "yes", ChoiceFinished(0, "stop"))


def test_thoughts_that_never_end_meet_no_stop() -> None:
    """There is no answer to end."""
    assert run(pipeline("+"), ids_of("<think>1 + 1")) == ("1 + 1", "", ChoiceFinished(0, "stop"))


def test_entries_of_logprobs_end_where_the_answer_does() -> None:
    """Entries of logprobs end where the answer does, also where thoughts, their tags and white
    space come first.
    """
    out = pipeline("cd")
    ids = ids_of(f"{THOUGHT}a") + [TOKENIZER.token_to_id(char) for char in "bcde"]
    events = list(out.push(ids, [TokenLogprobs(-0.5) for _ in ids])) + out.finish("stop")
    entries = [
        entry for one in events if isinstance(one, TextDelta) for entry in one.logprobs or ()
    ]
    assert [entry.token for entry in entries][-2:] == ["a", "b"]
    assert said(events) == ("12 + 7 = 19", "ab", ChoiceFinished(0, "stop", "cd"))


def test_a_stop_token_of_text_ends_only_the_answer() -> None:
    """A stop token that is text ends only the answer: in the thoughts it is the text that it is
    anywhere; in the answer it is not shown.
    """
    plus = TOKENIZER.token_to_id("+")
    ids = [*ids_of("<think>a"), plus, *ids_of("b</think>one EN"), plus, *ids_of("two")]
    for steps in ([ids], [[one] for one in ids]):
        out = pipeline("END", stop_ids=frozenset({plus}))
        assert run(out, *steps) == ("a+b", "one EN", ChoiceFinished(0, "stop"))
        assert out.num_unread == len(ids_of("two"))


@pytest.mark.parametrize(
    ("name", "head", "thought", "between"),
    [
        ("harmony", "<|channel|>analysis<|message|>", "a+b",
         "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("solar_open", "<|think|>", "a+b", "<|end|><|begin|>assistant<|content|>"),
        ("kimi_k3", "<|open|>think<|sep|>", "a+b",
         "<|close|>think<|sep|><|open|>response<|sep|>"),
    ],
)  # fmt: skip
def test_a_stop_token_ends_an_answer_that_is_a_message(
    name: str, head: str, thought: str, between: str
) -> None:
    """The answer of gpt-oss went on behind the tokens of `stop_token_ids` that are text."""
    plus = TOKENIZER.token_to_id("+")
    ids = [*ids_of(head), *ids_of("a"), plus, *ids_of(f"b{between}one"), plus, *ids_of("two")]
    form = AnswerFormat(None, REASONING_FORMATS[name])
    for steps in ([ids], [[one] for one in ids]):
        out = OutputPipeline(
            ByteDetokenizer(TABLE),
            StopMatcher(()),
            stop_ids=frozenset({plus}),
            reasoning=form.splitter((), is_open=False, is_past=False),
        )
        assert run(out, *steps) == (thought, "one", ChoiceFinished(0, "stop"))
        assert out.num_unread == len(ids_of("two"))
