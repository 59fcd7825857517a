"""What an alias may put into the fields of a request."""

from typing import Any

import pytest

from config import FallbackConfig, ModelConfig, ParamsConfig
from gateway.api.alias_params import wrong_values


def said(**fields: Any) -> list[str]:
    params = {"set": ParamsConfig(set=fields), "default": ParamsConfig(default=fields)}
    lines = {}
    for verb, each in params.items():
        model = ModelConfig(name="m", aliases=("a",), alias_params={"a": each})
        lines[verb] = list(wrong_values([model]))
        assert all(line.startswith(f"model `m`, alias_params.a.{verb}.") for line in lines[verb])
    assert len(lines["set"]) == len(lines["default"])
    return [line.partition(".set.")[2] for line in lines["set"]]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("temperature", "hot", "expected `float`, got `str`"),
        ("temperature", 101, "expected `float` <= 100.0"),
        ("max_tokens", -1, "expected `int` >= 0"),
        ("stop", [1], "expected `str`, got `int`"),
        ("seed", 1.5, "expected `int`, got `float`"),
        ("chat_template_kwargs", "x", "expected `object`, got `str`"),
        ("logprobs", "yes", "expected `int`, got `str`"),
    ],
)
def test_a_value_that_no_endpoint_takes_is_told(field: str, value: object, why: str) -> None:
    """Every request by the alias would be a 400 that blames the client."""
    assert said(**{field: value}) == [f"{field}: {why}"]


def test_what_one_endpoint_takes_is_left() -> None:
    """An alias may set fields that only one endpoint takes, and fields that none reads; `logprobs`
    is a switch of chats and a number of completions.
    """
    fields = {"temperature": 0.2, "stop": "x", "logprobs": True, "vendor_field": object()}
    assert said(**fields) == []
    assert said(logprobs=3, top_k=-1, stop=["x", "y"], reasoning_effort=7) == []


def test_a_provider_judges_for_itself() -> None:
    """Fields for a provider are not judged here, even those that have the names of ours."""
    target = FallbackConfig(provider="p", model="x", params=ParamsConfig(set={"stop": 5}))
    assert not list(wrong_values([ModelConfig(name="m", fallback=(target,))]))
