"""The official client against a running fleet."""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.e2e.shared_fleet.conftest import SMALL_WINDOW

HELLO = [{"role": "user", "content": "Hello, who are you?"}]
OPEN_END = {"ignore_eos": True, "frequency_penalty": 2}
"""The model is sure of a short answer and its end, and of nothing beyond: there samples differ."""


def test_models_are_listed_with_one_context_length(client: OpenAI) -> None:
    """Every name has exactly one number that clients may take for its window."""
    models = {model.id: model.model_dump() for model in client.models.list()}
    assert list(models) == ["alpha", "beta", "default"]
    assert models["default"]["root"] == "alpha"
    assert models["beta"]["max_model_len"] == SMALL_WINDOW
    assert models["alpha"]["max_model_len"] == 65_536
    assert client.models.retrieve("alpha").id == "alpha"


def test_an_answer_comes_with_usage(client: OpenAI) -> None:
    """A plain completion has text, a finish reason and usage that adds up."""
    answer = client.chat.completions.create(model="alpha", messages=HELLO, max_tokens=8)
    assert answer.choices[0].finish_reason in {"length", "stop"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8
    total = answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.total_tokens == total


def test_a_stream_says_the_same_as_a_plain_answer(client: OpenAI) -> None:
    """Greedy deltas concatenate to the non-streamed text, and usage comes last and alone."""
    plain = client.chat.completions.create(
        model="alpha", messages=HELLO, max_tokens=24, temperature=0
    )
    chunks: list[ChatCompletionChunk] = list(
        client.chat.completions.create(
            model="alpha",
            messages=HELLO,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *spoken, last = chunks
    assert spoken[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in spoken)
    assert text == (plain.choices[0].message.content or "")
    assert last.choices == []
    assert last.usage is not None
    assert plain.usage is not None
    assert last.usage.completion_tokens == plain.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in spoken if c.choices[0].finish_reason] == [
        plain.choices[0].finish_reason
    ]
    assert len({chunk.id for chunk in chunks}) == 1


def test_two_models_by_name_reach_two_workers(client: OpenAI) -> None:
    """The name in the request decides which engine answers; an alias is as good as a name."""

    def served_by(model: str) -> str | None:
        answer = client.chat.completions.with_raw_response.create(
            model=model, messages=HELLO, max_tokens=2
        )
        return answer.headers.get("x-herma-worker")

    assert served_by("beta") == "b1"
    assert served_by("alpha") in {"a1", "a2"}
    assert served_by("default") in {"a1", "a2"}


def test_an_unknown_model_is_named(client: OpenAI) -> None:
    """Asking for a model that nobody serves is a 404 with the code that clients know."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gamma", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert "gamma" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gamma")


def test_a_prompt_over_the_window_is_refused(client: OpenAI) -> None:
    """A prompt larger than the window is a 400 that names the window; nothing is cut silently."""
    long = [{"role": "user", "content": "word and number 7 " * 600}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="beta", messages=long)
    assert caught.value.code == "context_length_exceeded"
    assert f"maximum context length is {SMALL_WINDOW} tokens" in str(caught.value)


def test_max_tokens_over_the_rest_of_the_window_is_clamped(client: OpenAI) -> None:
    """Clients that always ask for 65,536 tokens get what the window leaves."""
    long = [{"role": "user", "content": "word and number 7 " * 80}]
    answer = client.chat.completions.create(
        model="beta", messages=long, max_tokens=65_536, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 1
    assert answer.usage.total_tokens == SMALL_WINDOW
    assert answer.choices[0].finish_reason == "length"


def test_stop_strings_end_the_text_before_them(client: OpenAI) -> None:
    """The text ends before the stop string, and tokens after it are not billed."""
    free = client.chat.completions.create(
        model="alpha", messages=HELLO, max_tokens=32, temperature=0
    )
    text = free.choices[0].message.content or ""
    stop = text[4:6]
    assert stop
    cut = client.chat.completions.create(
        model="alpha", messages=HELLO, max_tokens=32, temperature=0, stop=[stop]
    )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage is not None
    assert free.usage is not None
    assert cut.usage.completion_tokens < free.usage.completion_tokens


def test_a_seed_repeats_an_answer(client: OpenAI) -> None:
    """The same seed gives the same text at temperature 1; another seed another text."""

    def say(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="alpha",
            messages=HELLO,
            max_tokens=64,
            temperature=1,
            seed=seed,
            extra_body=OPEN_END,
        )
        return answer.choices[0].message.content

    assert say(7) == say(7)
    assert say(7) != say(8)


def test_an_answer_is_greedy_where_the_model_says_so(client: OpenAI) -> None:
    """The built-in model advises against sampling: no temperature is temperature 0."""

    def say(**fields: Any) -> str | None:
        answer = client.chat.completions.create(
            model="alpha", messages=HELLO, max_tokens=64, extra_body={**OPEN_END, **fields}
        )
        return answer.choices[0].message.content

    assert say(seed=1) == say(seed=2) == say(temperature=0)


def test_several_choices_are_one_answer(client: OpenAI) -> None:
    """`n` choices come back with their indices and one usage over all of them."""
    answer = client.chat.completions.create(
        model="alpha",
        messages=HELLO,
        max_tokens=64,
        n=3,
        temperature=1,
        seed=3,
        extra_body=OPEN_END,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
