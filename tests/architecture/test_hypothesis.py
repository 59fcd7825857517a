"""A property that fails is reported soon, with a smaller example where one is found in time."""

from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine as search
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

NUMBERS = st.lists(st.integers(0, 1000), min_size=40, max_size=60)


def test_the_search_for_a_smaller_example_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a smaller example ends after half a minute; here each look at the clock is a
    second later.
    """
    clock = SimpleNamespace(perf_counter=count(0.0).__next__, monotonic=lambda: 0.0)
    monkeypatch.setattr(search, "time", clock)
    num_examples = 0

    @given(NUMBERS)
    def never_holds(numbers: list[int]) -> None:
        nonlocal num_examples
        num_examples += 1
        assert sum(numbers) <= 9_000

    with pytest.raises(AssertionError):
        never_holds()
    assert 1 < num_examples < 100
    assert Phase.explain not in settings.default.phases


def test_a_state_machine_that_fails_is_made_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    """The report shows only the steps of the state machine that the failure needs."""

    class Life(RuleBasedStateMachine):
        total = 0

        @rule(number=st.integers(0, 9))
        def add(self, number: int) -> None:
            self.total += number
            assert self.total < 20

        @rule()
        def rest(self) -> None:
            pass

    with pytest.raises(AssertionError) as failed:
        run_state_machine_as_test(Life)
    told = "\n".join(getattr(failed.value, "__notes__", ())) + capsys.readouterr().out
    assert told.count("state.add(") == 3
    assert "state.rest(" not in told
