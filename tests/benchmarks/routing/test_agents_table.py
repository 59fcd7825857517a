"""The table of agents that do not all fit, and people who chat beside them."""

from typing import Any

from benchmarks.routing.agents import READERS, agents_trace
from benchmarks.routing.agents_table import AgentsCell, bar_lines, run_cell


def test_readers_read_before_they_ask_again() -> None:
    trace = agents_trace(2, 1, seed=1, num_readers=3)
    readers = [turn for turn in trace.turns if turn.key == READERS]
    assert {turn.session.split(".")[0] for turn in readers if turn.session} == {
        f"reader-{number}" for number in range(3)
    }
    assert all(5.0 <= turn.pause_s <= 60.0 for turn in readers if turn.after)
    agents = [turn for turn in trace.turns if turn.key != READERS]
    known = {digest for turn in agents for digest in turn.digests}
    assert not known & {digest for turn in readers for digest in turn.digests}


def test_agents_that_do_not_fit_keep_their_places_and_people_do_not_wait_for_them() -> None:
    """Twice what fits: hits stay, and a chat beside them has its first token sooner than behind an
    engine's own queue.
    """
    rows = {
        admission: run_cell(
            AgentsCell(
                2.0, "return", admission, has_host=False, seed=1, kv_tokens=500_000, num_readers=4
            )
        )
        for admission in ("none", "programs")
    }
    assert rows["programs"]["hit_rate"] >= 0.7
    assert rows["none"]["hit_rate"] < 0.7
    assert rows["programs"]["readers_p90_s"] < rows["none"]["readers_p90_s"]


def _row(ratio: float, admission: str, order: str, *, host: bool, **figures: float) -> Any:
    return {"ratio": ratio, "admission": admission, "order": order, "host": host, **figures}


def test_bars_are_means_over_seeds() -> None:
    usual = {"throughput_tok_s": 50.0, "hit_rate": 0.9, "computed_per_turn": 4.0, "ttft_p90_s": 2.0}
    rows = [
        _row(1.0, "programs", "return", host=True, **usual),
        _row(2.0, "programs", "return", host=True, **usual),
        _row(2.0, "programs", "return", host=False, **usual),
        _row(2.0, "programs", "return", host=False, **{**usual, "hit_rate": 0.8}),
        _row(2.0, "programs", "belady", host=False, **{**usual, "computed_per_turn": 5.0}),
        _row(2.0, "none", "lru", host=False, **{**usual, "throughput_tok_s": 20.0}),
    ]
    found = [line.split("|")[3].strip() for line in bar_lines(rows)[2:]]
    assert found == ["0.900", "0.850", "1.00", "2.50", "1.0", "1.0", "0.80"]
    assert bar_lines(rows[1:]) == []
