"""Outputs of models as turn events, for property tests of formatters: what the output package may
emit for one choice, in the order that it promises.
"""

import itertools
import json
from collections.abc import Sequence

from hypothesis import strategies as st

from gateway.api.events import (
    ChoiceFinished,
    ContentEvent,
    ReasoningDelta,
    Started,
    StopReason,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TurnEvent,
    Usage,
)

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
JSON = st.dictionaries(
    st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=3
)
PAGES = st.fixed_dictionaries(
    {"type": st.just("url_citation"), "url": TEXTS},
    optional={"title": TEXTS, "content": TEXTS, "start_index": st.integers(0, 9)},
)
FILES = st.fixed_dictionaries({"type": st.just("file_citation"), "file_id": TEXTS})
ANNOTATIONS = st.lists(PAGES | FILES, max_size=2).map(tuple)
STARTED = Started("worker", "gpu0", 8, "prefix", "alpha", prompt_tokens=20)
USAGE = Usage(prompt_tokens=20, cached_tokens=8, completion_tokens=5, reasoning_tokens=2)


@st.composite
def _call(draw: st.DrawFn, index: int, name: str, *, is_cut: bool) -> list[ContentEvent]:
    text = json.dumps(draw(JSON))
    if is_cut:
        text = text[: draw(st.integers(0, len(text)))]
    edges = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=4))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    deltas = [ToolCallArguments(0, index, piece) for piece in pieces]
    return [ToolCallStart(0, index, f"call_{index}", name), *deltas, ToolCallEnd(0, index)]


@st.composite
def _texts(draw: st.DrawFn, texts: st.SearchStrategy[str], most: int) -> list[ContentEvent]:
    return [
        TextDelta(0, text, annotations=draw(ANNOTATIONS))
        for text in draw(st.lists(texts, max_size=most))
    ]


@st.composite
def model_outputs(draw: st.DrawFn, names: Sequence[str] = ("book", "look_up")) -> list[TurnEvent]:
    """A whole turn: reasoning, then text and calls, a finish, the usage. A worker may be lost on
    the way, so that another start comes in its midst.
    """
    events: list[TurnEvent] = [
        ReasoningDelta(0, text) for text in draw(st.lists(TEXTS, max_size=3))
    ]
    is_cut = draw(st.booleans())
    num_calls = draw(st.integers(0, 3))
    for index in range(num_calls):
        events += draw(_texts(TEXTS | st.just(""), 2))
        is_last = index == num_calls - 1
        events += draw(_call(index, draw(st.sampled_from(names)), is_cut=is_cut and is_last))
    if not (is_cut and num_calls):
        events += draw(_texts(TEXTS, 3))
        events += [TextDelta(0, "", annotations=draw(ANNOTATIONS))]
        if not num_calls:
            refusals = draw(st.lists(TEXTS, max_size=2))
            events += [TextDelta(0, text, is_refusal=True) for text in refusals]
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), STARTED)
    reason: StopReason = "length" if is_cut else "tool_calls" if num_calls else "stop"
    stop = draw(st.none() | TEXTS) if reason == "stop" else None
    return [STARTED, *events, ChoiceFinished(0, reason, stop), USAGE]
