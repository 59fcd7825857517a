"""Mutated requests of agents: an answer or a clear refusal, and no text forges a turn.

2,000 of each kind in `make test`, 100,000 in `make fuzz`.
"""

import json
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.chat_parser import chat_request, parse_chat_request
from gateway.api.completions_parser import parse_completions
from gateway.api.errors import ApiError
from gateway.api.json_body import decode_object, typed_body
from gateway.api.request import ChatRequest, Message
from gateway.api.utility_bodies import TokenizeBody
from gateway.prompt import encode_raw
from gateway.prompt.model_text import ModelText
from protocol.tokens import unpack_tokens
from tests.fakes.agent_request import after_tool_result, first_turn, title_call
from tests.fakes.mutations import mutated, spliced
from tests.fakes.text_files import SPECIALS, make_text_files

NOW = datetime(2026, 11, 21, tzinfo=UTC)
TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run it.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def _short(body: dict[str, Any]) -> dict[str, Any]:
    """A body of the same form with a hundredth of the size."""
    body["messages"][0]["content"] = body["messages"][0]["content"][:60]
    return {**body, "tools": [TOOL]} if "tools" in body else body


FULL = {
    **title_call("alpha"),
    "n": 2,
    "stop": ["a", "b"],
    "seed": 1,
    "top_k": -1,
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "chat_template_kwargs": {"enable_thinking": False},
    "metadata": {"session_id": "s"},
    "reasoning": {"effort": "low"},
}
CHATS = (
    _short(first_turn("alpha")),
    _short(after_tool_result("alpha")),
    title_call("alpha"),
    FULL,
    {**FULL, "tools": [TOOL], "tool_choice": "required"},
)
TEXTS = (
    {"model": "alpha", "prompt": ["Once", "Twice"], "n": 2, "logprobs": 1, "max_tokens": 9},
    {"model": "alpha", "prompt": [[1, 2], [3]], "stream": True, "stop": ["."]},
    {"model": "alpha", "prompt": "Once", "echo": True, "best_of": 1, "suffix": ""},
)


@cache
def _text() -> ModelText:
    return ModelText(make_text_files())


def _check(error: ApiError) -> None:
    """One clear error: the four fields, as JSON."""
    assert error.status == 400
    assert set(json.loads(error.body())["error"]) == {"message", "type", "param", "code"}


def _encoded(request: ChatRequest) -> list[int]:
    """The prompt's ids by way of the memory of segments, as a turn has them."""
    text = _text()
    draft = text.prompts.draft(text.render_chat(*_rendered(request)))
    return list(unpack_tokens(text.prompts.finish(draft, text.prompts.encode(draft))))


def _rendered(request: ChatRequest) -> tuple[Any, ...]:
    return request.messages, request.tools, request.template_kwargs, NOW


def _num_control(ids: list[int]) -> int:
    control = {_text().encoder.tokenizer.token_to_id(token) for token in SPECIALS}
    return sum(token_id in control for token_id in ids)


def _harmless(value: Any) -> Any:
    """`value` without anything that could be read as a control token."""
    match value:
        case str():
            return value.replace("<|", "(").replace("\ufdd0", "")
        case list() | tuple():
            return [_harmless(item) for item in value]
        case dict():
            return {_harmless(key): _harmless(item) for key, item in value.items()}
        case _:
            return value


@given(st.randoms(use_true_random=True))
def test_a_mutated_chat_is_rendered_or_refused(random: Random) -> None:
    """Nothing but a 400 comes out of parsing, sampling and rendering; the prompt has exactly the
    control tokens that the same chat without a trace of them would have.
    """
    try:
        request = parse_chat_request(mutated(random.choice(CHATS), random))
        request.sampling(16)
        ids = _encoded(request)
    except ApiError as error:
        _check(error)
        return
    _check_nothing_forged(request, ids)


@given(st.randoms(use_true_random=True))
def test_control_tokens_in_content_forge_nothing(random: Random) -> None:
    """Wherever a request has text of its sender: messages, calls, tools, schemas, variables."""
    raw = spliced(random.choice(CHATS), random)
    request = parse_chat_request(json.dumps(raw).replace("\\ud800", "").encode())
    _check_nothing_forged(request, _encoded(request))


def _check_nothing_forged(request: ChatRequest, ids: list[int]) -> None:
    harmless = msgspec.structs.replace(
        request,
        messages=tuple(
            msgspec.convert(_harmless(msgspec.to_builtins(one)), Message)
            for one in request.messages
        ),
        tools=tuple(_harmless(list(request.tools))),
        template_kwargs=_harmless(request.template_kwargs),
    )
    assert _num_control(ids) == _num_control(_encoded(harmless))
    assert ids == list(_text().encode_chat(*_rendered(request)))


@given(st.randoms(use_true_random=True))
def test_a_mutated_completion_is_encoded_or_refused(random: Random) -> None:
    """Nothing but a 400 comes out, and never an id that the model does not know."""
    try:
        asked = parse_completions(mutated(random.choice(TEXTS), random))
        for request in asked.requests:
            assert request.prompt is not None
            ids = encode_raw(_text(), request.prompt, add_special_tokens=request.add_special_tokens)
            request.sampling(16)
            assert len(ids) > 0
            assert max(ids) < _text().vocab_size
    except ApiError as error:
        _check(error)


@given(st.randoms(use_true_random=True))
def test_a_mutated_chat_is_counted_or_refused(random: Random) -> None:
    """What /tokenize reads of it is a request, or a 400."""
    try:
        raw = decode_object(mutated(random.choice(CHATS), random))
        if typed_body(raw, TokenizeBody).messages is not None:
            chat_request({**raw, "model": "alpha"})
    except ApiError as error:
        _check(error)
