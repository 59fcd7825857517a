"""The last hour in samples."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import History, Reading, percentile
from gateway.telemetry.history import MAX_SAMPLES


def test_counters_become_rates() -> None:
    """A sample says what happened since the one before, by its own length."""
    history = History()
    history.add(Reading(100.0, ended=10, output_tokens=1000, failed=1))
    reading = Reading(
        104.0, ended=18, output_tokens=1400, failed=2, open=3, queued=1, firsts=(0.3, 0.1, 0.2)
    )
    history.add(reading)
    (sample,) = history.samples
    assert sample.seconds == 4.0
    assert sample.requests_per_s == 2.0
    assert sample.output_tokens_per_s == 100.0
    assert (sample.failed, sample.open, sample.queued) == (1, 3, 1)
    assert (sample.first_p50_ms, sample.first_p95_ms) == (200.0, 300.0)


def test_a_clock_that_is_set_back_makes_no_sample() -> None:
    """A clock that is set back makes no sample, and a usage that corrects a count makes no negative
    rate.
    """
    history = History()
    for at, tokens in ((100.0, 50), (90.0, 60), (95.0, 40)):
        history.add(Reading(at, output_tokens=tokens))
    assert [sample.output_tokens_per_s for sample in history.samples] == [0.0]
    assert [sample.first_p50_ms for sample in history.samples] == [None]


@given(
    readings=st.integers(0, 3 * MAX_SAMPLES),
    cursors=st.lists(st.integers(0, 3 * MAX_SAMPLES), max_size=3),
)
def test_a_reader_gets_each_sample_once(readings: int, cursors: list[int]) -> None:
    """A reader gets each sample once, as far as the ring goes back, in order."""
    history = History()
    for number in range(readings):
        history.add(Reading(float(number)))
    for cursor in cursors:
        expected = [float(at) for at in range(1, readings)][-MAX_SAMPLES:]
        seen = [sample.unix_time for sample in history.since(cursor)]
        assert seen == [at for at in expected if at > cursor]


@given(st.lists(st.floats(0, 100), min_size=1).map(sorted))
def test_percentiles_are_values(values: list[float]) -> None:
    """The median of an even number of values is one of them, too."""
    assert percentile(values, 0.0) == values[0]
    assert percentile(values, 1.0) == values[-1]
    assert percentile(values, 0.5) in values
    assert percentile([], 0.5) is None
