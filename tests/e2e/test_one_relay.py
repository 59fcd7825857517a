"""A relayed answer costs few calls: of each event, and of the request to the provider."""

from tests.e2e.one_relay import trace_relay

MAX_OF_A_WORD = 32
MAX_OF_ARGUMENTS = 34
MAX_OF_A_CALL = 69
MAX_OF_THE_END = 77
MAX_TO_REQUEST = 201


def test_a_relayed_answer_takes_the_short_way() -> None:
    """The best word and the best piece of arguments; the start of a call and the end."""
    calls = trace_relay()
    assert min(calls[f"word {i}"] for i in (2, 3)) <= MAX_OF_A_WORD, calls
    assert min(calls[f"arguments {i}"] for i in (1, 2, 3)) <= MAX_OF_ARGUMENTS, calls
    assert calls["call"] <= MAX_OF_A_CALL, calls
    assert calls["end"] <= MAX_OF_THE_END, calls
    assert calls["request"] <= MAX_TO_REQUEST, calls
