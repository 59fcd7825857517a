"""The figures of `herma bench http`: what counts, percentiles, and how rounds are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http.answer import HttpAnswer, ServerUsage
from benchmarks.http.figures import RoundFigures, merge, percentile, rate_ratio, round_figures


def answer(
    sent_at: float, content_at: list[float], events: list[int] | None = None, tokens: int = 0
) -> HttpAnswer:
    """A whole answer; without `tokens` it has no usage."""
    made = HttpAnswer(sent_at, content_at, events or [1] * len(content_at), is_done=True)
    if tokens:
        made.usage = ServerUsage(prompt_tokens=10, completion_tokens=tokens)
    return made


def failed(sent_at: float, kind: str = "cut") -> HttpAnswer:
    made = HttpAnswer(sent_at)
    made.fail(kind, "because")
    return made


def test_rates_last_from_the_first_request_to_the_last_content() -> None:
    """Tokens of whole answers count, by usage; a request that failed was sent, but brings no
    tokens.
    """
    answers = [failed(0.0), answer(1.0, [2.0, 3.0], tokens=2), answer(1.5, [4.0], tokens=1)]
    figures = round_figures(answers, 2)
    assert (figures.tokens, figures.seconds, figures.tokens_per_s) == (3, 4.0, 0.75)
    assert figures.firsts_ms == [1000.0, 2500.0]
    assert figures.errors == {"cut": 1}
    assert figures.num_early == 1


def test_a_gap_is_divided_by_the_tokens_that_it_brought() -> None:
    """A gap is divided by the number of events in a read and by the tokens of an event; a pause is
    not divided.
    """
    figures = round_figures([answer(0.0, [1.0, 1.6, 1.8], [1, 3, 1], tokens=10)], 10)
    assert figures.pauses_ms == pytest.approx([600.0, 200.0])
    assert figures.gaps_ms == pytest.approx([100.0, 100.0, 100.0, 100.0])
    assert merge([figures]).tokens_per_event == 2.0


def test_events_without_usage_count_as_tokens() -> None:
    """Events of an answer without usage count as tokens, and the table says how many there were."""
    figures = merge([round_figures([answer(0.0, [1.0, 2.0])], 2)])
    assert (figures.tokens, figures.num_without_usage, figures.prompt_tokens) == (2, 1, None)


def test_usage_that_counts_less_than_came_is_noticed() -> None:
    """Gaps are not stretched by it."""
    figures = round_figures([answer(0.0, [1.0, 2.0, 3.0], tokens=1)], 1)
    assert figures.num_miscounted == 1
    assert figures.gaps_ms == [1000.0, 1000.0]


@given(values=st.lists(st.floats(0, 1e6), min_size=1), share=st.floats(0.01, 1.0))
def test_percentiles_cover_their_share(values: list[float], share: float) -> None:
    """A percentile is the smallest of the values that covers its share of them."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values)


def test_rounds_are_merged() -> None:
    """The median of the rates; percentiles of all requests; errors are added."""
    rounds = [
        round_figures([answer(0.0, [seconds], tokens=6), failed(0.0)], 6, cpu_s=0.6)
        for seconds in (1.0, 2.0, 6.0)
    ]
    figures = merge(rounds)
    assert (figures.tokens_per_s, figures.tokens_per_s_rounds) == (3.0, (6.0, 3.0, 1.0))
    assert figures.spread == pytest.approx(5 / 2 / 3)
    assert (figures.first_ms_p50, figures.first_ms_p99) == (2000.0, 6000.0)
    assert (figures.num_requests, figures.num_errors, figures.errors) == (6, 3, {"cut": 3})
    assert figures.client_us_per_token == pytest.approx(1e5)
    assert figures.client_share == pytest.approx(0.2)
    assert figures.examples == {"cut": "because"}


def test_servers_are_compared_within_a_round() -> None:
    """Noise that hits a whole round hits both; a round in which one failed is left out."""
    fast, slow = (
        [RoundFigures(tokens=tokens, seconds=seconds) for seconds in (1.0, 5.0, 2.0)]
        for tokens in (30, 20)
    )
    assert rate_ratio(fast, slow) == pytest.approx(1.5)
    slow[1] = RoundFigures()
    slow[2] = RoundFigures(tokens=30, seconds=2.0)
    assert rate_ratio(fast, slow) == pytest.approx(1.25)
    assert rate_ratio(fast, [RoundFigures()]) is None


def test_nothing_counted_is_no_figure() -> None:
    """Where every request failed there is no zero that looks measured."""
    figures = merge([round_figures([failed(0.0), failed(0.0, "HTTP 429")], 8)])
    assert (figures.tokens_per_s, figures.first_ms_p50, figures.gap_ms_p99) == (None, None, None)
    assert (figures.num_errors, figures.errors) == (2, {"cut": 1, "HTTP 429": 1})
    assert figures.as_json()["client_us_per_token"] is None
