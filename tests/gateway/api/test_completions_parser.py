"""Parsing of raw completion bodies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.completions_parser import Completions, parse_completions
from gateway.api.errors import ApiError


def parse(**fields: Any) -> Completions:
    return parse_completions(json.dumps({"model": "m", "prompt": "Once", **fields}).encode())


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("given_prompt", "prompts"),
    [
        ("Once", ["Once"]),
        (["Once", "Twice"], ["Once", "Twice"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_every_form_of_a_prompt_is_read(given_prompt: Any, prompts: list[Any]) -> None:
    """Text, texts, ids and lists of ids; each prompt is a request of its own."""
    asked = parse(prompt=given_prompt, n=2)
    assert [request.prompt for request in asked.requests] == prompts
    assert asked.num_choices == 2 * len(prompts)
    assert len({request.fingerprint for request in asked.requests}) == len(prompts)
    assert all(request.messages == () for request in asked.requests)


def test_what_is_left_out_has_the_defaults_of_the_api() -> None:
    """Sixteen tokens, one choice, no log-probabilities, special tokens around the text."""
    (request,) = parse().requests
    assert (request.max_tokens, request.n, request.logprobs) == (16, 1, False)
    assert request.add_special_tokens
    assert not parse(add_special_tokens=False).requests[0].add_special_tokens


def test_logprobs_is_a_number_here() -> None:
    """0 means those of the chosen tokens alone."""
    (request,) = parse(logprobs=0).requests
    assert (request.logprobs, request.top_logprobs) == (True, 0)
    assert parse(logprobs=3).requests[0].top_logprobs == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [2**32]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Each wrong value is one 400 that names the field."""
    assert refusal(**fields).param == param


def test_a_missing_prompt_is_called_missing() -> None:
    """The most common mistake has a clear error."""
    with pytest.raises(ApiError) as caught:
        parse_completions(b'{"model":"m"}')
    assert caught.value.message == "'prompt' is missing."


def test_harmless_forms_of_unserved_fields_pass() -> None:
    """An empty suffix, best_of as n and a text format ask for nothing."""
    parse(suffix="", best_of=2, n=2, response_format={"type": "text"}, user="u", unknown=1)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["prompt", "n", "stop", "echo", "best_of"]), ANY_JSON))
def test_any_json_in_any_field_is_a_request_or_a_400(fields: dict[str, Any]) -> None:
    """Wrong shapes anywhere are refused, never a crash."""
    try:
        parse(**fields)
    except ApiError as error:
        assert error.status == 400
