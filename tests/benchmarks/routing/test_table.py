"""What the table says of rows that we know."""

from pathlib import Path

import pytest

from benchmarks.routing.plot import plot_rows
from benchmarks.routing.run import Row
from benchmarks.routing.table import cells, compared, geometric_mean, lines, overload_lines


def row(policy: str, mean_ms: float, load: float = 0.8, seed: int = 0, hits: float = 0.5) -> Row:
    """A row whose p90 is twice its mean."""
    return {
        "policy": policy,
        "trace": "t",
        "workers": 2,
        "load": load,
        "seed": seed,
        "ttft_mean_ms": mean_ms,
        "ttft_p50_ms": mean_ms,
        "ttft_p90_ms": 2 * mean_ms,
        "ttft_p99_ms": 3 * mean_ms,
        "ttft_max_ms": 4 * mean_ms,
        "hit_rate": hits,
        "throughput_tok_s": 10.0,
        "imbalance": 1.0,
    }


def test_seeds_are_averaged_before_policies_are_compared() -> None:
    """The best baseline is best on average, not on its best day."""
    rows = [row("herma", 100, seed=0), row("herma", 120, seed=1)]
    rows += [row("lmetric", 50, seed=0), row("lmetric", 250, seed=1)]
    rows += [row("random", 110, seed=0), row("random", 130, seed=1)]
    (cell,) = cells(rows)
    assert cell.best("ttft_mean_ms") == ("random", 120)
    assert cell.ratio("ttft_mean_ms") == pytest.approx(110 / 120)


def test_bounds_and_overload_are_shown_and_not_judged() -> None:
    """A bound that wins costs nothing, and above 0.95 no policy is judged."""
    rows = [row("herma", 100), row("random", 200), row("bound_infinite", 1, hits=0.52)]
    rows += [row("herma", 900, load=1.1), row("random", 200, load=1.1)]
    found = cells(rows)
    assert [cell.load for cell in compared(found)] == [0.8]
    assert compared(found)[0].ratio("ttft_mean_ms") == 0.5
    text = "\n".join(lines(rows))
    assert "t x2 at 1.1" in text
    assert "2.0 points below bound_infinite (t x2 at 0.8)" in text
    assert "FAILS" not in text


def test_lost_cells_are_named() -> None:
    """Each with its ratio; the verdict is beside it."""
    text = lines([row("herma", 150), row("lmetric", 100), row("random", 300)])
    assert "  lost: t x2 at 0.8 1.50" in text
    assert sum("FAILS" in line for line in text) == 4


def test_overload_is_held_against_the_policy_of_the_best_mean() -> None:
    """The longest wait and the tokens; the p90 against the best one's. What misses is bold."""
    rows = [
        {**row("herma", 104, load=1.1), "ttft_max_ms": 700.0, "throughput_tok_s": 9.0},
        row("lmetric", 100, load=1.1),
        {**row("random", 110, load=1.1), "ttft_p90_ms": 180.0, "ttft_max_ms": 9.0},
    ]
    text = overload_lines(cells(rows))
    assert text[2] == "| t x2 at 1.1 | 1.04 | **1.16** | **1.75** | 0.90 | lmetric |"
    assert text[3] == "2 figures miss the bars of overload"


def test_p90_is_held_against_the_published_ones() -> None:
    """Against their mean, at the loads that are named."""
    names = ("smg_cache_aware", "llmd_precise", "dynamo_kv", "aibrix_prefix")
    rows = [row("herma", 100), *(row(name, 200) for name in names)]
    assert "  geometric mean 0.500, at most 0.85: holds" in lines(rows)


def test_rows_without_ours_are_listed() -> None:
    """Some policies alone are a table, too, with nothing to judge."""
    text = "\n".join(lines([row("random", 100)]))
    assert "t x2 at 0.8  random: mean 100 ms" in text
    assert "nothing to judge" in text


def test_the_geometric_mean() -> None:
    """Twice and half cancel out."""
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_a_picture_is_drawn_where_matplotlib_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PNG, or a line that says why there is none."""
    path = tmp_path / "table.png"
    if plot_rows([row("herma", 100), row("random", 200)], path):
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert "matplotlib is not installed" in capsys.readouterr().out
