"""Sampling parameters hold their bounds wherever they come from."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from protocol.sampling import MAX_STOP_IDS, SamplingParams
from tests.fakes.messages import SAMPLING

NAN = float("nan")
INF = float("inf")

OUT_OF_BOUNDS: list[tuple[str, list[Any]]] = [
    ("max_tokens", [0, -1, 2**31]),
    ("temperature", [-0.1, 100.1, NAN, INF]),
    ("top_p", [-0.1, 1.1, NAN]),
    ("top_k", [-1, 2**31]),
    ("min_p", [-0.1, 1.1, NAN]),
    ("presence_penalty", [-2.1, 2.1, NAN]),
    ("frequency_penalty", [-2.1, 2.1, -INF]),
    ("repetition_penalty", [0.0, -1.0, 100.1, NAN]),
    ("stop_token_ids", [(-1,), (2**32,), (0,) * (MAX_STOP_IDS + 1)]),
    ("logprobs", [-1, 21]),
]
CASES = [(name, value) for name, values in OUT_OF_BOUNDS for value in values]


@given(SAMPLING)
def test_values_inside_the_bounds_are_kept(sampling: SamplingParams) -> None:
    """Every value inside its bounds survives encoding and decoding."""
    encoded = msgspec.msgpack.encode(sampling)
    assert msgspec.msgpack.decode(encoded, type=SamplingParams) == sampling


@pytest.mark.parametrize(("name", "value"), CASES)
def test_values_outside_the_bounds_are_refused(name: str, value: Any) -> None:
    """A value outside its bounds is an error that names the parameter."""
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{"max_tokens": 1, name: value})


@pytest.mark.parametrize(("name", "value"), CASES)
def test_bounds_hold_on_decoding_too(name: str, value: Any) -> None:
    """A peer cannot send what the constructor refuses."""
    fields = {"max_tokens": 1, name: value}
    good = SamplingParams(max_tokens=1)
    values = [fields.get(field, getattr(good, field)) for field in good.__struct_fields__]
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=SamplingParams)


def test_the_defaults_are_neutral() -> None:
    """Nothing but the length limit acts unless it is asked for."""
    params = SamplingParams(max_tokens=8)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty) == (0.0, 0.0)
    assert (params.repetition_penalty, params.stop_token_ids, params.logprobs) == (1.0, (), None)
