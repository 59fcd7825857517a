"""The short way of a plain token: it may save work, and must change nothing."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.api_format import AnswerHead
from gateway.api.chat_formatter import ChunkFormatter
from gateway.api.events import ToolCallArguments, TurnEvent
from gateway.output.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, StreamDetokenizer
from gateway.output.reasoning import REASONING_FORMATS, ReasoningSplitter
from gateway.output.sequence_output import OutputPipeline, SequenceOutput
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.prompt.model_text import ModelText
from protocol.errors import WireError
from protocol.messages import TokenItem, TokenLogprobs
from protocol.tokens import TOKEN_BYTES, pack_tokens
from tests.fakes.text_files import make_text_files, make_tokenizer
from tests.fakes.tool_answers import ANSWERS, TOOLS

TEXT = ModelText(make_text_files())
TOKENIZER = make_tokenizer()
SHOWN = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"})
TABLE = ByteTable(TOKENIZER, SHOWN)
END = TOKENIZER.encode("<|im_end|>", add_special_tokens=False).ids[0]
SILENT = frozenset({END, TOKENIZER.encode("r", add_special_tokens=False).ids[0]})
MAX_TOKENS = 1000
UNKNOWN = 2**31
PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<th", "[TOOL_CALLS]", "{",
    '\n{"name": "f", "arguments": {"a": 1}}\n', "a < b", "🙂", "é", " ", "\n\n", "STOP", "ST",
    "Hello", " there", " word", ".", "  x ",
)  # fmt: skip

pieces = st.sampled_from(PIECES)
token_ids = st.one_of(
    pieces.map(lambda text: TOKENIZER.encode(text, add_special_tokens=False).ids),
    st.integers(0, TOKENIZER.get_vocab_size() - 1).map(lambda one: [one]),
    st.sampled_from([[END], [UNKNOWN]]),
)
streams = st.lists(token_ids, max_size=12).map(lambda parts: [one for ids in parts for one in ids])
shapes = st.fixed_dictionaries(
    {
        "stops": st.sampled_from([(), (), ("STOP",), ("o w", "\n", "TO")]),
        "tools": st.sampled_from([None, "hermes", "llama3_json"]),
        "thinks": st.sampled_from(["never", "maybe", "already"]),
        "scored": st.sampled_from([False, False, False, True]),
        "is_bytes": st.sampled_from([True, True, True, False]),
    }
)


def output(
    stops: tuple[str, ...] = (),
    tools: str | None = None,
    thinks: str = "maybe",
    scored: bool = False,
    is_bytes: bool = True,
) -> tuple[SequenceOutput, list[TurnEvent]]:
    form = None if tools is None else TOOL_FORMATS[tools]
    decoder: Detokenizer
    decoder = ByteDetokenizer(TABLE) if is_bytes else StreamDetokenizer(TOKENIZER, SHOWN)
    pipeline = OutputPipeline(
        decoder,
        StopMatcher(stops),
        None if form is None else ToolParser(form, bytes),
        silent_ids=SILENT,
        token_bytes=TABLE if scored else None,
        reasoning=ReasoningSplitter(
            None if thinks == "never" else REASONING_FORMATS["think"],
            is_open=thinks == "already",
            enders=form.markers if form is not None and thinks != "never" else (),
        ),
    )
    events: list[TurnEvent] = []
    ends = frozenset({END})
    return SequenceOutput(pipeline, events.append, max_tokens=MAX_TOKENS, end_ids=ends), events


def item(*ids: int, scored: bool = False) -> TokenItem:
    logprobs = tuple(TokenLogprobs(-0.5) for _ in ids) if scored else ()
    return TokenItem(bytes(16), 1, 0, pack_tokens(ids), logprobs)


@pytest.mark.parametrize("stops", [(), ("er: ", "er so", "}}", "TOP"), ("🙂", ":")])
@pytest.mark.parametrize("thinks", ["never", "maybe", "already"])
@pytest.mark.parametrize("tools", [None, "hermes", "llama3_json"])
@pytest.mark.parametrize(
    "text",
    [
        "<think>Hm, better: a < b</think> STO? It is < 2 🙂é. So \n it is",
        "Hm<tool_call>{}</think>But <tool_call> 🙂 is text </tool_call>.",
        'So<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> and more.',
        '<tool_call>{"name": "f", "arguments": {"a": "raw \x01 \\t, better so"}}</tool_call>',
        '{"name": "f", "parameters": {"a": 1}} and more <|python_tag|>.',
    ],
)
def test_the_short_way_is_left_in_time(
    text: str, tools: str | None, thinks: str, stops: tuple[str, ...]
) -> None:
    """Where reasoning end, a call begins, a stop string or a split character, nothing slips
    through.
    """
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    _compare(ids, {"tools": tools, "thinks": thinks, "stops": stops})


@given(streams, shapes)
def test_the_short_way_says_the_same(ids: list[int], shape: dict[str, Any]) -> None:
    """Token by token the same events, counts and bytes, whatever comes and whatever is asked."""
    _compare(ids, shape)


def _compare(ids: list[int], shape: dict[str, Any]) -> None:
    long, expected = output(**shape)
    short, events = output(**shape)
    scored = shape.get("scored", False)
    for token_id in ids:
        one = item(token_id, scored=scored)
        is_over = long.take(one.ids, one.logprobs)
        assert short.take_item(one) == is_over
        assert events == expected
        assert short.has_text == long.has_text
        if is_over:
            break
    for choice in (long, short):
        choice.finish("length")
    assert events == expected
    assert short.packed == long.packed
    assert short.num_tokens == long.num_tokens == len(long.packed) // TOKEN_BYTES
    assert (short.completion_tokens, short.reasoning_tokens) == (
        long.completion_tokens,
        long.reasoning_tokens,
    )
    told = [ChunkFormatter(AnswerHead("id", 1, "m")) for _ in range(2)]
    assert [told[0].format(one) for one in events] == [told[1].format(one) for one in expected]


@pytest.mark.parametrize("at", range(len(ANSWERS)))
def test_calls_of_every_format_are_the_same(at: int) -> None:
    """Answers with calls, well-formed or not, token by token and however they break off."""
    answer = ANSWERS[at]
    ids = TEXT.encoder.encode_texts([answer.text])[0]
    pairs = [_calling(answer.form) for _ in range(2)]
    (long, expected), (short, events) = pairs
    for token_id in ids:
        long.take(pack_tokens([token_id]))
        short.take_item(item(token_id))
        assert events == expected
    for choice, _ in pairs:
        choice.finish("length" if at % 2 else "stop")
    assert events == expected
    assert short.completion_tokens == long.completion_tokens == len(ids)


def _calling(form: str) -> tuple[SequenceOutput, list[TurnEvent]]:
    parts = TEXT.answer_format(form)
    assert parts.tools is not None
    drawn = iter(range(1, 1000))
    pipeline = OutputPipeline(
        TEXT.decoder(parts),
        StopMatcher(()),
        ToolParser(parts.tools, lambda n: next(drawn).to_bytes(n, "little"), TOOLS),
        reasoning=ReasoningSplitter(parts.reasoning, enders=parts.enders),
    )
    events: list[TurnEvent] = []
    return SequenceOutput(pipeline, events.append, max_tokens=10_000, end_ids=frozenset()), events


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "kimi_k2"])
def test_long_arguments_are_plain(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a string that is an argument goes the short way."""
    pushed = _count_pushed(monkeypatch)
    start, end = {
        "hermes": ('<tool_call>{"name": "f", "arguments": {"text": "', '"}}</tool_call>'),
        "qwen3_coder": ("<tool_call><function=f><parameter=text>", "</parameter></function>"),
        "kimi_k2": ('<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"text": "', '"}'),
    }[form]
    choice, events = _calling(form)
    marks = list(chain.from_iterable(TEXT.encoder.encode_texts([start, end])))
    for token_id in TEXT.encoder.encode_texts([start + "word" * 100 + end])[0]:
        choice.take_item(item(token_id))
    assert len(pushed) < len(marks) + 20
    arguments = "".join(one.text for one in events if isinstance(one, ToolCallArguments))
    assert arguments.count("word") == 100


def test_nearly_all_tokens_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words go the short way amid reasoning and amid text, also where calls are looked for."""
    pushed = _count_pushed(monkeypatch)
    choice, events = output(tools="hermes")
    words = TOKENIZER.encode("talk" * 50, add_special_tokens=False).ids
    opening, closing = (
        TOKENIZER.encode(tag, add_special_tokens=False).ids for tag in ("<think>", "</think>")
    )
    for token_id in (*opening, *words, *closing, *words):
        choice.take_item(item(token_id))
    assert len(pushed) <= len(opening) + len(closing) + 2 < len(words)
    text = "".join(getattr(event, "text", "") for event in events)
    assert text.count("talk") == 100


def _count_pushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that will not have gone the short way."""
    pushed: list[int] = []
    push = OutputPipeline.push

    def counted(self: OutputPipeline, ids: Any, logprobs: Any = ()) -> Any:
        pushed.extend(ids)
        return push(self, ids, logprobs)

    monkeypatch.setattr(OutputPipeline, "push", counted)
    return pushed


def test_tables_of_plain_texts_are_few() -> None:
    """However many stop strings clients think of."""
    table = ByteTable(TOKENIZER)
    first = table.plain(frozenset("<"))
    assert table.plain(frozenset("<")) is first
    for code in range(0x100, 0x400):
        table.plain(frozenset(chr(code)))
    assert len(table._plain) <= 16


def test_tables_know_which_ids_are_silent() -> None:
    """What ends one client's answers is a word in another's."""
    table = ByteTable(TOKENIZER)
    (word, *_) = TOKENIZER.encode(" word", add_special_tokens=False).ids
    assert table.plain(frozenset())[pack_tokens([word])]
    assert not table.plain(frozenset(), silent_ids=frozenset({word}))[pack_tokens([word])]
    assert table.plain(frozenset())[pack_tokens([word])]


def test_no_way_goes_over_the_order() -> None:
    """One token more than ordered is the worker's fault, plain or not."""
    choice, _ = output(thinks="never")
    (word, *_) = TOKENIZER.encode(" word", add_special_tokens=False).ids
    for _ in range(MAX_TOKENS):
        choice.take_item(item(word))
    with pytest.raises(WireError, match=str(MAX_TOKENS)):
        choice.take_item(item(word))
    with pytest.raises(WireError, match="not a multiple"):
        choice.take_item(TokenItem(bytes(16), 1, 0, b"12345"))
    assert choice.num_tokens == MAX_TOKENS
