"""What a choice has given, token by token."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.events import ChoiceFinished, TextDelta, TurnEvent
from gateway.output.detokenizer import ByteDetokenizer, ByteTable
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import EventSink, OutputPipeline, SequenceOutput
from gateway.output.stop_strings import StopMatcher
from protocol.errors import WireError
from protocol.tokens import TOKEN_BYTES, pack_tokens
from tests.fakes.text_files import make_tokenizer

TOKENIZER = make_tokenizer()
TABLE = ByteTable(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")
TEXT = "<think> a < b </think> The end of it, STOP, is near. 🙂"


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def output(*stops: str, max_tokens: int = 1000) -> tuple[SequenceOutput, list[TurnEvent]]:
    events: list[TurnEvent] = []
    pipeline = OutputPipeline(
        ByteDetokenizer(TABLE),
        StopMatcher(stops),
        silent_ids=frozenset({END}),
        reasoning=ReasoningSplitter(),
    )
    ends = frozenset({END})
    return SequenceOutput(pipeline, events.append, max_tokens=max_tokens, end_ids=ends), events


def said(events: list[TurnEvent]) -> list[tuple[type, str]]:
    """The text of each kind of event, joined, and the ends."""
    joined: dict[type, str] = {}
    for event in events:
        text = event.reason if isinstance(event, ChoiceFinished) else getattr(event, "text", "")
        joined[type(event)] = joined.get(type(event), "") + text
    return list(joined.items())


@given(st.lists(st.integers(0, len(ids_of(TEXT))), max_size=6), st.booleans())
def test_frames_of_any_size_say_the_same(cuts: list[int], stops: bool) -> None:
    """However many tokens a frame holds, reasoning, text, counts and end are the same."""
    ids = ids_of(TEXT)
    one, expected = output(*(["STOP"] if stops else []))
    for token_id in ids:
        one.take(pack_tokens([token_id]))
    many, events = output(*(["STOP"] if stops else []))
    edges = [0, *sorted(cuts), len(ids)]
    ends = [many.take(pack_tokens(ids[a:b])) for a, b in itertools.pairwise(edges)]
    one.finish("length")
    many.finish("length")
    assert said(events) == said(expected)
    assert events[-1] == (
        ChoiceFinished(0, "stop", "STOP") if stops else ChoiceFinished(0, "length")
    )
    assert any(ends) == stops
    counts = [(x.completion_tokens, x.reasoning_tokens, x.packed) for x in (one, many)]
    assert counts[0] == counts[1]
    assert one.reasoning_tokens > 0


def test_text_is_seen_only_once_it_is_out() -> None:
    """Half a character, or what may become a stop string, was seen by nobody."""
    first, *rest = ids_of("🙂")
    choice, events = output("xyz")
    assert not choice.take(pack_tokens([first]))
    assert not choice.has_text
    choice.take(pack_tokens(rest))
    assert choice.has_text
    assert events == [TextDelta(0, "🙂")]


def test_events_go_where_the_sink_says_now() -> None:
    """A client may take over between two tokens."""
    first: list[TurnEvent] = []
    second: list[TurnEvent] = []
    sink = EventSink(first.append)
    pipeline = OutputPipeline(ByteDetokenizer(TABLE), StopMatcher([]))
    choice = SequenceOutput(pipeline, sink, max_tokens=10, end_ids=frozenset())
    choice.take(pack_tokens(ids_of("a")))
    sink.emit = second.append
    choice.take(pack_tokens(ids_of("b")))
    choice.finish("stop")
    assert said(first) == [(TextDelta, "a")]
    assert said(second) == [(TextDelta, "b"), (ChoiceFinished, "stop")]


def test_more_than_was_ordered_is_refused() -> None:
    """A worker that sends more than `max_tokens` breaks the protocol, and nothing of it counts."""
    choice, events = output(max_tokens=2)
    choice.take(pack_tokens(ids_of("ab")[:1]))
    before = len(events)
    with pytest.raises(WireError):
        choice.take(pack_tokens([1, 2]))
    assert (choice.num_tokens, len(choice.packed)) == (1, TOKEN_BYTES)
    assert (len(events), choice.num_left) == (before, 1)


def test_complete_is_what_has_its_end_or_all_its_tokens() -> None:
    """An end token means stop, all ordered tokens mean length, anything else goes on."""
    choice, _ = output(max_tokens=3)
    assert choice.complete_already() is None
    choice.take(pack_tokens([5]))
    assert choice.complete_already() is None
    choice.take(pack_tokens([END]))
    assert choice.complete_already() == "stop"
    choice.take(pack_tokens([5]))
    assert choice.complete_already() == "length"
    choice.num_unsent = 1
    assert choice.completion_tokens == 4
