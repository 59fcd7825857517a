"""Money in whole micro-units, rounded up, and upper bounds of tokens."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import PriceConfig, ProviderConfig, TariffConfig
from gateway.api.chat_parser import parse_chat_request
from gateway.api.events import Usage
from gateway.api.request import ChatRequest
from gateway.spending.prices import (
    LONG_TOKENS,
    PART_TOKENS,
    Price,
    output_bound,
    prompt_bound,
    show_amount,
    tariff_of,
    to_micro,
)

PRICE = Price.of_config(PriceConfig(input=0.28, cached_input=0.028, output=0.42))
amounts = st.integers(0, 10**12)
tokens = st.integers(0, 2**31 - 1)


def test_an_amount_is_taken_as_it_was_written() -> None:
    """0.29 * 1e6 is 289999.99999999994 in floats."""
    assert to_micro(0.29) == 290_000
    assert to_micro(0.1) + to_micro(0.2) == to_micro(0.3)
    assert to_micro(1e-7) == 1


@given(amounts)
def test_an_amount_is_shown_as_it_is(micro: int) -> None:
    """Six places are exact, fewer are rounded up."""
    assert Fraction(show_amount(micro)) == Fraction(micro, 1_000_000)
    cents = Fraction(show_amount(micro, 2))
    assert 0 <= cents - Fraction(micro, 1_000_000) < Fraction(1, 100)


def test_cached_tokens_have_their_own_price() -> None:
    """A million of each: 0.28 for the fresh half, 0.014 for the cached one, 0.42 for the output."""
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=500_000, completion_tokens=1_000_000)
    assert PRICE.cost(usage) == 140_000 + 14_000 + 420_000


@given(prompt=tokens, cached=tokens, output=tokens, more_prompt=tokens, more_output=tokens)
def test_the_worst_case_is_never_exceeded(
    prompt: int, cached: int, output: int, more_prompt: int, more_output: int
) -> None:
    """The worst case is never exceeded by a usage within the bounds, however much of it was
    cached.
    """
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output)
    for price in (PRICE, Price(input=100, cached_input=125, output=7)):
        assert price.cost(usage) <= price.worst(prompt + more_prompt, output + more_output)


@given(amount=amounts, prompt=tokens)
def test_what_an_amount_pays_for_is_the_most(amount: int, prompt: int) -> None:
    """The cap that an amount pays for fits, and a token more does not; no cap fits if the prompt
    alone costs too much.
    """
    output = PRICE.affordable_output(amount, prompt)
    assert PRICE.worst(prompt, output + 1) > amount
    assert PRICE.worst(prompt, output) <= amount or output == 0


def test_no_output_is_cheaper_than_free() -> None:
    """A cap on it would not help."""
    assert Price(input=100, cached_input=100, output=0).affordable_output(1, 10**9) == 0


def test_a_cost_is_rounded_up() -> None:
    """One token at 0.28 per million is 0.28 micro-units."""
    assert PRICE.cost(Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=0)) == 1
    assert PRICE.cost(Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)) == 0


@pytest.mark.parametrize(
    ("model", "price", "bound"), [("big", 3.0, 100), ("small", 1.0, 50), ("odd", 1.0, 7)]
)
def test_a_model_goes_before_its_provider(model: str, price: float, bound: int) -> None:
    """Each half of a tariff is found by itself."""
    provider = ProviderConfig(
        base_url="http://127.0.0.1",
        price=PriceConfig(input=1.0, output=1.0),
        max_output_tokens=50,
        models={
            "big": TariffConfig(price=PriceConfig(input=3.0, output=3.0), max_output_tokens=100),
            "odd": TariffConfig(max_output_tokens=7),
        },
    )
    tariff = tariff_of(provider, model)
    assert tariff.price is not None
    assert (tariff.price.input, tariff.max_output_tokens) == (to_micro(price), bound)


def request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat_request(json.dumps(body).encode())


@given(st.text())
def test_a_prompt_has_no_more_tokens_than_bytes(text: str) -> None:
    """A prompt has no more tokens than bytes, also where each byte is a token of its own."""
    content = [{"role": "user", "content": text}]
    assert prompt_bound(request(messages=content)) > len(text.encode())


def test_tools_and_images_count() -> None:
    """Schemas by their bytes, what is not text by a flat number."""
    plain = prompt_bound(request())
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 1000}}
    assert prompt_bound(request(tools=[tool])) > plain + 1000
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    parts = [{"role": "user", "content": [{"type": "text", "text": "?"}, image, image]}]
    assert prompt_bound(request(messages=parts)) > plain + 2 * PART_TOKENS


@pytest.mark.parametrize(
    ("fields", "model_bound", "bound"),
    [
        ({}, None, None),
        ({}, 100, 100),
        ({"max_tokens": 7}, None, 7),
        ({"max_completion_tokens": 7}, None, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, None, 9),
        ({"max_tokens": 65_536}, 8192, 8192),
        ({"max_tokens": 7, "n": 3}, 100, 21),
        ({"max_tokens": None, "n": 2}, 100, 200),
    ],
)
def test_the_output_is_bounded_by_the_request_or_the_model(
    fields: dict[str, Any], model_bound: int | None, bound: int | None
) -> None:
    """The output is bounded by the lower of the request and the model, for every choice; of two
    caps in a request the larger counts, as providers differ in which they obey.
    """
    assert output_bound(request(**fields), model_bound) == bound


@pytest.mark.parametrize(
    ("part", "most"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}, PART_TOKENS),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}, PART_TOKENS),
        ({"type": "file", "file": {"file_id": "file-1"}}, LONG_TOKENS),
        ({"type": "file", "file": "file-1"}, LONG_TOKENS),
        ({"type": "video_url", "video_url": {"url": "https://a.example/x.mp4"}}, LONG_TOKENS),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, PART_TOKENS),
        ({"type": "input_video", "input_video": None}, LONG_TOKENS),
    ],
)
def test_a_part_that_is_not_in_the_body_may_be_long(part: dict[str, Any], most: int) -> None:
    """A film or a document may fill the window of any model."""
    text = {"type": "text", "text": "x"}
    plain = prompt_bound(request(messages=[{"role": "user", "content": [text]}]))
    bound = prompt_bound(request(messages=[{"role": "user", "content": [text, part]}]))
    assert plain + most < bound < plain + most + 200
