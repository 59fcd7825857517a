"""Echo with log-probabilities: what evaluations read of `/v1/completions`."""

import json
from typing import Any

import pytest
import torch
from openai import BadRequestError, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.model_dir import builtin_dir

TEXTS = (
    "The capital of France is Paris, and the capital of Norway is",
    "one two three four five six seven eight nine ten " * 12,
    "Ü: 12 + 7 = 19\n\nfunction f(x) { return x; }",
)
MODEL = builtin_dir("builtin:herma-tiny")


@pytest.fixture(scope="module", name="reference")
def _reference() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def scores(text: str) -> tuple[list[int], list[float], list[bool]]:
        ids = tokenizer(text).input_ids
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [float(rows[at, one]) for at, one in enumerate(ids[1:])]
        best = [int(rows[at].argmax()) == one for at, one in enumerate(ids[1:])]
        return ids, own, best

    return scores


def _asked(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    given: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, "temperature": 0, **fields}
    return client.completions.create(model="alpha", prompt=prompt, echo=True, **given)


@pytest.mark.parametrize("text", TEXTS)
def test_sums_are_those_of_transformers(client: OpenAI, reference: Any, text: str) -> None:
    """Sums of log-probabilities are those of transformers, for requests as of lm-eval: a list of
    ids, one token more. Cold, and behind a cached prefix.
    """
    ids, own, best = reference(text)
    for _ in range(2):
        answer = _asked(client, [ids])
        (choice,) = answer.choices
        found = choice.logprobs
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
        assert len(found.tokens) == len(ids) + 1
        assert found.token_logprobs[0] is found.top_logprobs[0] is None
        assert sum(found.token_logprobs[1:-1]) == pytest.approx(sum(own), abs=1e-4)
        greedy = [
            one == max(top.values())
            for one, top in zip(found.token_logprobs[1:-1], found.top_logprobs[1:-1], strict=True)
        ]
        assert greedy == best
        assert found.text_offset == sorted(found.text_offset)
        assert choice.text.startswith(text)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids)
        assert answer.usage.completion_tokens == 1


def test_text_and_ids_give_the_same(client: OpenAI, reference: Any) -> None:
    """Text and ids give the same, with nothing generated, and for several prompts of several
    choices.
    """
    ids, own, _ = reference(TEXTS[0])
    for prompt in (TEXTS[0], ids, [TEXTS[0], TEXTS[2]]):
        answer = _asked(client, prompt, max_tokens=0, n=2, logprobs=2)
        assert answer.choices[0].text == TEXTS[0]
        for choice in answer.choices[:2]:
            found = choice.logprobs
            assert found is not None
            assert len(found.token_logprobs) == len(ids)
            assert sum(found.token_logprobs[1:]) == pytest.approx(sum(own), abs=1e-4)
            assert choice.finish_reason == "length"
        assert len(answer.choices) == (4 if isinstance(prompt[0], str) and len(prompt) == 2 else 2)
        assert answer.usage.completion_tokens == 0


def test_a_stream_begins_with_the_prompt(client: OpenAI, reference: Any) -> None:
    """A stream begins with the prompt and its log-probabilities, once."""
    ids, own, _ = reference(TEXTS[0])
    chunks = list(_asked(client, TEXTS[0], max_tokens=2, stream=True))
    first = chunks[0].choices[0]
    assert first.text == TEXTS[0]
    assert sum(first.logprobs.token_logprobs[1:]) == pytest.approx(sum(own), abs=1e-4)
    rest = [chunk.choices[0].logprobs for chunk in chunks[1:] if chunk.choices]
    entries = [one for logprobs in rest if logprobs for one in logprobs.tokens]
    assert 0 < len(entries) <= 2
    assert len(first.logprobs.tokens) == len(ids)


def test_echo_without_logprobs_may_generate_nothing(client: OpenAI) -> None:
    """The prompt alone."""
    answer = client.completions.create(model="alpha", prompt="abc", echo=True, max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].logprobs) == ("abc", None)
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="alpha", prompt="abc", max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_an_engine_that_cannot_is_named(client: OpenAI) -> None:
    """A synthetic one has no probabilities of prompts."""
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="beta", prompt="abc", echo=True, logprobs=1, max_tokens=1)
    assert caught.value.code == "prompt_logprobs_not_served"
    assert "logprobs" in json.dumps(caught.value.body)
