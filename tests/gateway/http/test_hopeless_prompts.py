"""A prompt that cannot fit is refused before its body is decoded, and nothing else is."""

import json
from typing import Any

import pytest

from config import FallbackConfig, ModelConfig, ProviderConfig
from gateway.http import generation, messages_route, responses_route
from gateway.turn import prompt_room
from tests.fakes.served import Reply, ask
from tests.fakes.whole_gateway import WholeGateway, whole_gateway

WORDS = "word " * 140_000
CHATS = "/v1/chat/completions"
MESSAGES = "/v1/messages"
LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": (CHATS, {"messages": [{"role": "user", "content": WORDS}]}),
    "a chat in parts": (
        CHATS,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}]},
    ),
    "the first of many turns": (
        CHATS,
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": WORDS},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "Why?"},
            ]
        },
    ),
    "a message": (MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": WORDS}]}),
    "a response": ("/v1/responses", {"input": WORDS}),
    "a response of items": ("/v1/responses", {"input": [{"role": "user", "content": WORDS}]}),
    "a completion of ids": ("/v1/completions", {"prompt": [5] * 200_000}),
    "a completion": ("/v1/completions", {"prompt": WORDS}),
}


def never(*_: object, **__: object) -> None:
    raise AssertionError("the body is decoded")


async def post(url: str, path: str, fields: dict[str, Any]) -> Reply:
    return await ask(url, "POST", path, json.dumps({"model": "alpha", **fields}).encode())


@pytest.mark.parametrize("name", LONG)
async def test_it_is_refused_without_decoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fields = LONG[name]
    async with whole_gateway() as whole:
        await _make_known(whole)
        monkeypatch.setattr(generation, "parse_any_chat", never)
        monkeypatch.setattr(generation, "parse_completions", never)
        monkeypatch.setattr(messages_route, "parse_messages", never)
        monkeypatch.setattr(responses_route, "read_responses", never)
        reply = await post(whole.url, path, fields)
        assert reply.status == 400, reply
        text = reply.body.decode()
        assert ("prompt is too long" if path == MESSAGES else "resulted in") in text


async def _make_known(whole: WholeGateway) -> None:
    """The tokenizer and the window are known once there was an answer."""
    reply = await post(whole.url, CHATS, {"messages": [{"role": "user", "content": "Hi"}]})
    assert reply.status == 200, reply


async def test_it_is_counted_nevertheless() -> None:
    """Clients count what they have before they shorten it."""
    async with whole_gateway() as whole:
        fields = {"messages": [{"role": "user", "content": WORDS}]}
        reply = await post(whole.url, "/v1/messages/count_tokens", fields)
        assert reply.status == 200, reply
        assert json.loads(reply.body)["input_tokens"] > 140_000


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "Hi"}], "unknown": WORDS},
        {"messages": [{"role": "user", "content": "Hi"}], "metadata": {"x": [WORDS]}},
        {"messages": [{"role": "user", "content": "\u001b" * 3}], "also": "\\n" * 400_000},
    ],
)
async def test_long_fields_that_no_prompt_has_are_no_reason(fields: dict[str, Any]) -> None:
    async with whole_gateway() as whole:
        reply = await post(whole.url, CHATS, {**fields, "max_tokens": 2})
        assert reply.status == 200, reply


async def test_a_model_with_providers_is_left_to_them() -> None:
    """A prompt for a model with providers is not refused early: providers may have larger
    windows.
    """
    chain = (FallbackConfig(provider="p", model="large"),)
    models = (ModelConfig(name="alpha", fallback=chain),)
    providers = {"p": ProviderConfig(base_url="http://127.0.0.1:9/v1", api_key_env="PROVIDER_KEY")}
    async with whole_gateway(models=models, providers=providers) as whole:
        await _make_known(whole)
        services = whole.gateway.services
        assert prompt_room(services, "alpha", "messages") is None


async def test_a_template_that_leaves_questions_out_proves_nothing() -> None:
    """A template that leaves questions out proves nothing: only what is in the prompt counts."""
    source = "{{ messages[-1]['content'] }}"
    async with whole_gateway() as whole:
        await _make_known(whole)
        services = whole.gateway.services
        assert prompt_room(services, "alpha", "messages") is not None
        (text,) = [entry.text for entry in services.files._entries.values()]
        assert text is not None
        assert not text.with_template(source).shows_questions
        assert text.shows_questions
