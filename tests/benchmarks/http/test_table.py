"""The table of `herma bench http`, and what is said beside it."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.http.client import Endpoint, RequestOptions
from benchmarks.http.figures import RoundFigures
from benchmarks.http.plot import plot
from benchmarks.http.run import HttpPlan, ResultRow, Results, summary
from benchmarks.http.table import notes, table
from benchmarks.http.workload import Agents, PromptWords, Streams, TokenScale


def figures(**fields: object) -> RoundFigures:
    usual: dict[str, object] = {"num_requests": 8, "num_answers": 8, "tokens": 800, "events": 800}
    usual |= {"seconds": 2.0, "prompt_tokens": 4400, "firsts_ms": [10.0, 30.0], "cpu_s": 0.02}
    return RoundFigures(**{**usual, "gaps_ms": [5.0], "pauses_ms": [5.0], **fields})  # type: ignore[arg-type]


def results(ours: list[RoundFigures], theirs: list[RoundFigures] | None = None) -> Results:
    """Two rounds of a cell at `a`, and at `b` if there is something of it."""
    endpoints = [Endpoint("a", "http://a/v1"), Endpoint("b", "http://b/v1")]
    plan = HttpPlan(
        tuple(endpoints[: 1 if theirs is None else 2]),
        (Streams(8, 550), Agents(32, 4, 4000, 8000)),
        rounds=len(ours),
        seed=7,
        words=PromptWords(),
        options=RequestOptions(output_tokens=100, patience_s=1.0),
    )
    made = Results(plan, {"a": "m", "b": "m"}, {"a": TokenScale(1.2, 9.0), "b": None})
    made.firsts = [{"cell": "c=8", "first": "a"}, {"cell": "c=8", "first": "b"}]
    made.row("c=8").rounds["a"] = ours
    if theirs is not None:
        made.row("c=8").rounds["b"] = theirs
    return made


def test_the_columns_are_straight_and_hold_the_figures() -> None:
    """The columns of the Markdown table are straight and hold the figures; a ratio above 1 is
    better, for times as well.
    """
    made = results([figures()] * 2, [figures(tokens=500, firsts_ms=[15.0, 20.0])] * 2)
    made.row("agents 32x4", "first turns").rounds["a"] = [figures()]
    lines = table(made).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    first = ["c=8", "a", "400 ±0.0 %", "10 / 30", "5 / 5", "5", "550", "", "0", "1.60", "1.50"]
    assert cells[2] == first
    assert cells[3][-2:] == ["", ""]
    assert cells[4][:3] == ["- first turns", "a", ""]


def test_one_server_needs_no_ratios() -> None:
    """The table of one server has no ratios, and no note on the order of servers."""
    made = results([figures()])
    assert "×" not in table(made) + "".join(notes(made))
    assert not any("ran first" in line for line in notes(made))


def test_how_it_was_measured_is_reported() -> None:
    """Servers, tokens per word, the seed, which server ran first, what the client took."""
    text = "\n".join(notes(results([figures()], [figures()])))
    assert "a: http://a/v1, model m; by its usage 1.2 tokens per word, 9 more per request" in text
    assert "b: http://b/v1, model m; reports no usage" in text
    assert "seed 7" in text
    assert "ran first, of 2 turns: a 1, b 1" in text
    assert "25 to 25 us of CPU per token, and at most 0.01 of its core" in text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"num_answers": 7, "errors": Counter(cut=1), "examples": {"cut": "no\n[DONE]"}},
            "FAILED: c=8, a: 1 of 8: cut: no [DONE]",
        ),
        (
            {"num_early": 3, "tokens": 400},
            "a: 3 of 8 answers ended before 100 tokens (mean of all 50)",
        ),
        ({"num_long": 2}, "a: 2 of 8 answers have more than 100 tokens"),
        ({"num_without_usage": 8}, "a: 8 of 8 answers have no usage"),
        ({"num_miscounted": 1}, "a: 1 of 8 answers came in more events than their usage"),
        ({"events": 400}, "a: 2.00 to 2.00 tokens per event: gaps are divided by that"),
        ({"cached_tokens": 4000}, "a: 91 % of the prompts came from a cache"),
        ({"cpu_s": 1.5}, "NOT TO BE TRUSTED: c=8, a: the client used 0.75 of its core"),
    ],
)
def test_what_is_odd_is_reported(fields: dict[str, object], expected: str) -> None:
    """The notes report what is odd, and are empty where nothing is odd."""
    assert any(line.startswith((expected, f"c=8, {expected}")) for line in notes(odd(fields)))
    assert not any(expected[:12] in line for line in notes(odd({})))


def odd(fields: dict[str, object]) -> Results:
    return results([figures(**fields)])


def test_a_shared_prefix_in_a_cache_is_not_odd() -> None:
    """A shared prefix in a cache is not odd: only prompts that share nothing must not be found in
    one.
    """
    made = results([figures()])
    made.row("agents 32x4").rounds["a"] = [figures(cached_tokens=4000)]
    assert not any("cache, though" in line for line in notes(made))


def test_a_turn_is_reported_in_a_line() -> None:
    """A turn is reported in a line with its errors, and without figures where there are none."""
    assert summary(figures()) == "400 tok/s, first token 10.0 / 30.0 ms, gap 5.0 / 5.0 ms"
    nothing = RoundFigures(num_requests=2, errors=Counter({"HTTP 429": 2}))
    assert summary(nothing).endswith("gap none / none ms; 2 HTTP 429")
    made = results([nothing])
    assert "none" in table(made)
    assert made.num_errors == 2


def test_a_picture_needs_matplotlib_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a line says what is missing."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plot(results([figures()]), tmp_path / "x.png")
    assert not plot(results([RoundFigures(num_requests=1)]), tmp_path / "x.png")
    assert capsys.readouterr().out.splitlines() == [
        f"no {tmp_path}/x.png: matplotlib is not installed",
        f"no {tmp_path}/x.png: no answer came",
    ]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    """The picture is a PNG, also with a server that has no figures in some cell."""
    pytest.importorskip("matplotlib")
    made = results([figures()], [RoundFigures(num_requests=8)])
    made.rows.append(ResultRow("c=64", rounds={"a": [figures()]}))
    assert plot(made, tmp_path / "deep" / "x.png")
    assert (tmp_path / "deep" / "x.png").read_bytes().startswith(b"\x89PNG")
