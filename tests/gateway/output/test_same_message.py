"""One answer, streamed or not: the same message."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.api_format import AnswerHead
from gateway.api.chat_formatter import ChunkFormatter, CompletionBuilder
from gateway.api.events import ChoiceFinished
from gateway.output.answer_format import answer_format
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import OutputEvent, OutputPipeline
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.prompt.model_text import ModelText
from tests.fakes.text_files import make_text_files
from tests.fakes.tool_answers import ANSWERS, TOOLS

TEXT = ModelText(make_text_files())


def pipeline(form: str) -> OutputPipeline:
    parts = answer_format("", form)
    assert parts.tools
    drawn = iter(range(1, 1000))
    parser = ToolParser(parts.tools, lambda n: next(drawn).to_bytes(n, "little"), TOOLS)
    reasoning = ReasoningSplitter(parts.reasoning, enders=parts.enders)
    return OutputPipeline(TEXT.decoder(parts), StopMatcher(("STOP",)), parser, reasoning=reasoning)


def events_of(form: str, steps: list[list[int]]) -> list[OutputEvent]:
    out = pipeline(form)
    events = [event for ids in steps for event in out.push(ids)]
    return events + out.finish("stop")


def whole_message(events: list[OutputEvent]) -> Any:
    builder = CompletionBuilder(AnswerHead("id", 0, "m"))
    for event in events:
        builder.add(event)
    return json.loads(builder.body())["choices"][0]


def streamed_message(events: list[OutputEvent]) -> Any:
    """What a client joins, by the rules of the API."""
    formatter = ChunkFormatter(AnswerHead("id", 0, "m"))
    joined: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": [], "reason": None}
    for data in b"".join(map(formatter.format, events)).split(b"\n\n")[:-1]:
        choice = json.loads(data.removeprefix(b"data: "))["choices"][0]
        delta = choice["delta"]
        assert joined["reason"] is None, "nothing follows the finish"
        joined["content"] += delta.get("content") or ""
        joined["reasoning"] += delta.get("reasoning") or ""
        joined["reason"] = choice["finish_reason"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(joined["tool_calls"])
                joined["tool_calls"].append({**call, "function": dict(call["function"])})
            else:
                function = joined["tool_calls"][call["index"]]["function"]
                function["arguments"] += call["function"]["arguments"]
    return joined


PIECES = st.lists(
    st.sampled_from(
        [
            "<think>", "</think>", "STOP", "🙂", "é", "\n", " ", "text", "<", "<tool_call>",
            *(answer.text for answer in ANSWERS),
        ]
    ),
    max_size=5,
)  # fmt: skip


@given(st.sampled_from(sorted(TOOL_FORMATS)), PIECES, st.lists(st.integers(1, 40), max_size=20))
def test_streamed_or_not_it_is_the_same_message(
    form: str, pieces: list[str], sizes: list[int]
) -> None:
    """For any output and any steps: text, reasoning, calls with their ids, and the reason."""
    ids = TEXT.encoder.encode_texts(["".join(pieces)])[0]
    steps, at = [], 0
    for size in sizes:
        steps.append(ids[at : at + size])
        at += size
    steps.append(ids[at:])
    whole = whole_message(events_of(form, [ids]))
    events = events_of(form, steps)
    streamed = streamed_message(events)
    message = whole["message"]
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning"] == message.get("reasoning", "")
    calls = [{k: v for k, v in call.items() if k != "index"} for call in streamed["tool_calls"]]
    assert calls == message.get("tool_calls", [])
    assert streamed["reason"] == whole["finish_reason"]
    assert isinstance(events[-1], ChoiceFinished)
