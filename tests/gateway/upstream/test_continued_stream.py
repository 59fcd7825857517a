"""The seam of an answer that two upstreams give: for a client it is one answer."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import Usage
from gateway.upstream.continuation import (
    CannotContinue,
    continued,
    form_at,
    is_same_model,
    limit_of,
    needs_dropped,
    stops_of,
)
from gateway.upstream.continued_stream import (
    MARK,
    ContinuedStream,
    NotContinued,
    StopReached,
    ended_by_length,
)
from gateway.upstream.sent_answer import SentAnswer

MESSAGES = [{"role": "user", "content": "Hi"}]
DONE = b"data: [DONE]\n\n"
TEXTS = st.text(st.sampled_from("ab \n.<"), min_size=1, max_size=24)


def event(delta: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": fields.pop("finish", None)}
    choice |= fields.pop("choice", {})
    chunk = {"id": "one", "object": "chat.completion.chunk", "choices": [choice], **fields}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def sent(*events: bytes) -> SentAnswer:
    answer = SentAnswer()
    for one in events:
        answer.add(one)
    answer.read()
    return answer


def said(text: str, size: int = 3) -> list[bytes]:
    return [event({"content": text[at : at + size]}) for at in range(0, len(text), size)]


def chunks_of(data: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def text_of(data: bytes) -> str:
    deltas = [choice["delta"] for chunk in chunks_of(data) for choice in chunk["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def gone_on(answer: SentAnswer, *events: bytes, **fields: Any) -> bytes:
    """What the client gets behind `answer`; other upstreams have other ids."""
    passed: list[bytes] = []
    stream = ContinuedStream(answer, passed.append, "worker:t2", **fields)
    for one in events:
        stream.take(one.replace(b'"one"', b'"two"'))
    return b"".join(passed)


@given(text=TEXTS, at=st.integers(1, 24), size=st.integers(1, 4))
def test_both_parts_are_the_whole(text: str, at: int, size: int) -> None:
    """Wherever the cut is, and however the chunks are: an upstream that says the rest of what it
    was asked to go on with makes the text whole, white space too.
    """
    answer = sent(*said(text[:at]))
    made = continued({"messages": MESSAGES}, answer, "last_message")
    if isinstance(made, CannotContinue):
        assert not text[:at].strip()
        return
    begun = made["messages"][-1]["content"]
    rest = [*said(text[len(begun) :], size), event(finish="stop"), DONE]
    assert text[:at] + text_of(gone_on(answer, *rest)) == text


@given(
    text=TEXTS, at=st.integers(1, 24), size=st.integers(1, 4), stop=st.sampled_from(["ab.", "<"])
)
def test_a_stop_string_over_the_seam_ends_the_answer(
    text: str, at: int, size: int, stop: str
) -> None:
    """A stop string over the seam ends the answer, as if one upstream had looked for it in the
    whole text.
    """
    answer = sent(*said(text[:at]))
    if stop in text[:at] or not text[:at].strip() or text[:at] != text[:at].rstrip():
        return
    rest = text[at:]
    if (own := rest.find(stop)) >= 0:
        rest = rest[:own]  # the other upstream looks for it in what it says itself
    events = [*said(rest, size), event(finish="stop"), DONE]
    passed: list[bytes] = []
    stream = ContinuedStream(answer, passed.append, "worker:t2", stops=(stop,))
    try:
        for one in events:
            stream.take(one)
    except StopReached:
        assert passed[-1].endswith(DONE)
    whole = text[:at] + text_of(b"".join(passed))
    over = (text[:at] + rest).find(stop)
    assert whole == (text[:at] + rest if over < 0 else text[:at])
    assert chunks_of(b"".join(passed))[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_that_is_kept_is_whole() -> None:
    answer = sent(event({"content": "Say EN"}))
    passed: list[bytes] = []
    stream = ContinuedStream(answer, passed.append, "by", stops=("END",), keeps_stop=True)
    with pytest.raises(StopReached):
        stream.take(event({"content": "D and more"}))
    assert text_of(b"".join(passed)) == "D"


def test_it_is_one_stream_with_a_mark() -> None:
    """The id stays, no role comes twice, and the first chunk behind the seam says who goes on."""
    answer = sent(event({"role": "assistant"}, created=1), event({"content": "One"}))
    told = gone_on(
        answer, event({"role": "assistant", "content": ""}), event({"content": " two"}), DONE
    )
    (chunk,) = chunks_of(told)
    assert (chunk["id"], chunk["created"], chunk[MARK]) == ("one", 1, "worker:t2")
    assert chunk["choices"][0]["delta"] == {"content": " two"}
    assert told.endswith(DONE)


def test_usage_adds_up() -> None:
    """What was sent is no part of the prompt; the total is the second upstream's."""
    answer = sent(*[event({"content": "word "}) for _ in range(4)])
    details = {"cached_tokens": 13}
    usage = {"prompt_tokens": 14, "completion_tokens": 6, "total_tokens": 20}
    last = event(choices=[], usage={**usage, "prompt_tokens_details": details})
    told = chunks_of(gone_on(answer, last))[-1]["usage"]
    assert told["total_tokens"] == told["prompt_tokens"] + told["completion_tokens"] == 20
    assert (told["completion_tokens"], told["prompt_tokens_details"]["cached_tokens"]) == (10, 10)
    stream = ContinuedStream(answer, lambda _: None, "by")
    assert stream.usage(Usage(14, 13, 6)) == Usage(10, 10, 10)


def test_thoughts_behind_the_seam_are_no_continuation() -> None:
    with pytest.raises(NotContinued):
        gone_on(sent(event({"content": "One"})), event({"reasoning_content": "Hm"}))


CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
OBSTACLES = {
    "nothing": (),
    "white space": (event({"content": " \n"}),),
    "open thoughts": (event({"reasoning_content": "Hm"}),),
    "thoughts in the text": (event({"content": "<think>Hm"}),),
    "a call": (event({"content": "One"}), event({"tool_calls": [CALL]})),
    "thoughts behind text": (event({"content": "One"}), event({"reasoning": "Hm"})),
    "hidden thoughts": (event({"reasoning_details": [{"type": "x"}]}), event({"content": "One"})),
    "log-probabilities": (event({"content": "One"}, choice={"logprobs": {"content": []}}),),
    "choices": (event({"content": "One"}), event({"content": "One"}, choice={"index": 1})),
    "an end": (event({"content": "One"}), event(finish="stop")),
    "parts": (event({"content": [{"type": "text", "text": "One"}]}),),
    "a refusal": (event({"content": "One"}), event({"refusal": "No"})),
    "another form": (b'data: {"choices": 7}\n\n', event({"content": "One"})),
}


@pytest.mark.parametrize("what", OBSTACLES)
def test_where_nobody_goes_on(what: str) -> None:
    answer = sent(*OBSTACLES[what])
    made = continued({"messages": MESSAGES}, answer, "last_message")
    assert isinstance(made, CannotContinue), made
    assert made.why


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"json": {}}},
        {"grammar": "root ::= x"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"reasoning": {"exclude": True}},
        {"reasoning_effort": "high"},
        {"thinking": {"type": "enabled"}},
        {"include_reasoning": False},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "O"}]},
    ],
)
def test_requests_that_nobody_continues(fields: dict[str, Any]) -> None:
    answer = sent(event({"content": "One"}))
    made = continued({"messages": MESSAGES, **fields}, answer, "continue_final_message")
    assert isinstance(made, CannotContinue), made


def test_what_another_upstream_is_asked() -> None:
    """The answer so far without its last white space, its thoughts, and the rest of the bound."""
    answer = sent(event({"reasoning": "Hm."}), event({"content": "One"}), event({"content": "\n"}))
    raw = {"messages": MESSAGES, "max_tokens": 10, "min_tokens": 2, "reasoning_effort": "high"}
    made = continued(raw, answer, "continue_final_message")
    assert not isinstance(made, CannotContinue)
    assert made["messages"][-1] == {"role": "assistant", "content": "One", "reasoning": "Hm."}
    assert (made["continue_final_message"], made["add_generation_prompt"]) == (True, False)
    assert (made["max_tokens"], made["min_tokens"]) == (7, 0)
    assert (raw["max_tokens"], len(MESSAGES)) == (10, 1)
    made = continued(raw, answer, "prefix", "reasoning_content")
    assert not isinstance(made, CannotContinue)
    assert made["messages"][-1]["prefix"] is True
    assert made["messages"][-1]["reasoning_content"] == "Hm."
    assert isinstance(continued(raw, answer, "prefix", "none"), CannotContinue)


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_the_client_s_own_beginning_stays(mark: str) -> None:
    """An answer that the client began is one message with what was sent."""
    own = {"role": "assistant", "content": "And ", mark: True}
    raw = {"messages": [*MESSAGES, own]}
    made = continued(raw, sent(event({"content": "One"})), "prefix")
    assert not isinstance(made, CannotContinue)
    assert made["messages"] == [*MESSAGES, {**own, "content": "And One", "prefix": True}]


def test_long_answers_are_read_as_they_come() -> None:
    """Many chunks take the memory of their text."""
    answer = SentAnswer()
    for _ in range(10_000):
        answer.add(event({"content": "word "}))
    assert len(answer.chunks) < 300
    assert answer.obstacle() is None
    assert (answer.text, answer.tokens) == ("word " * 10_000, 10_000)


def test_comments_and_other_forms_are_read() -> None:
    """Comments and other forms are read as the usual ones, which are decoded together."""
    odd = event({"content": " two"}).replace(b"\n", b"\r\n")
    answer = sent(b": hello\n\n", event({"content": "One"}), odd, b": bye\n\n")
    assert (answer.text, answer.head["id"], answer.obstacle()) == ("One two", "one", None)


def test_keeping_text_costs_no_call_for_each_chunk() -> None:
    """Reading is the only work, and it is done for many chunks at once."""
    answer = sent(event({"content": "first"}))
    data = event({"content": "word "})
    num_calls = 0

    def count(_frame: object, what: str, _arg: object) -> None:
        nonlocal num_calls
        num_calls += what in ("call", "c_call")

    for _ in range(255):
        answer.chunks += (data,)
    sys.setprofile(count)
    answer.read()
    sys.setprofile(None)
    assert answer.tokens == 256
    assert num_calls < 64


def test_known_providers_and_models() -> None:
    assert form_at("https://api.deepseek.com/beta") == "prefix"
    assert form_at("https://api.deepseek.com/v1") is None
    assert form_at("https://api.mistral.ai/v1") == "prefix"
    assert form_at("https://mistral.ai.example/v1") is None
    assert is_same_model("Qwen/Qwen3-8B", "qwen3-8b")
    assert not is_same_model("qwen3-8b", "qwen3-8b-instruct")
    assert needs_dropped("continue_final_message", ("add_generation_prompt",))
    assert not needs_dropped("prefix", ("continue_final_message",))
    assert stops_of({"stop": "a"}) == ("a",)
    assert stops_of({"stop": ["a", "", None]}) == ("a",)
    assert limit_of({"max_tokens": 7, "max_completion_tokens": 5}) == 5
    assert ended_by_length(sent(event({"content": "One"}))).endswith(DONE)
