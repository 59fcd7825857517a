"""What `make chaos` asks beside the faults of workers: clouds and floods, each as a row.

Owns their bars and what their rows say. Must not know how anything was done.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.chaos.bad_clouds import run_bad_clouds
from tests.chaos.cloud_cover import AWAY_BAR_S, RETURN_BAR_S, run_cover
from tests.chaos.foreign import Seen, run_foreign
from tests.chaos.histories import run_history
from tests.chaos.leaks import Flood, cancel_upstream_streams, disconnect_clients
from tests.chaos.pair_faults import PAIR_FAULTS
from tests.chaos.pair_story import run_pair
from tests.chaos.report import missed, spread
from tests.chaos.traffic import Answers, Prompt

NUM_UPSTREAM: Final = 1_000
NUM_CLIENTS: Final = 10_000
FAULTS_AN_INJECTION: Final = 6
"""Of a history, whose faults overlap."""

Run = Callable[[Path, list[Prompt], Answers, int, int], Awaitable[dict[str, Any]]]


async def _cover(
    folder: Path, prompts: list[Prompt], expected: Answers, injections: int, _seed: int
) -> dict[str, Any]:
    covered = await run_cover(folder, prompts, expected, injections)
    figures = {"away": spread(covered.away_s), "return": spread(covered.return_s)}
    bars = {"away": AWAY_BAR_S, "return": RETURN_BAR_S}
    return {**figures, "missed": missed(figures, bars), "problems": covered.problems}


async def _bad_clouds(
    folder: Path, _prompts: list[Prompt], _expected: Answers, _injections: int, _seed: int
) -> dict[str, Any]:
    num_answers, problems = await run_bad_clouds(folder)
    return {"answers": num_answers, "missed": [], "problems": problems}


async def _upstream(
    _folder: Path, _prompts: list[Prompt], _expected: Answers, _injections: int, seed: int
) -> dict[str, Any]:
    return _of_flood(await cancel_upstream_streams(NUM_UPSTREAM, seed))


async def _disconnects(
    folder: Path, _prompts: list[Prompt], _expected: Answers, _injections: int, seed: int
) -> dict[str, Any]:
    return _of_flood(await disconnect_clients(folder, NUM_CLIENTS, seed))


def _of_flood(flood: Flood) -> dict[str, Any]:
    return {
        "begun": flood.num_begun,
        "answered": flood.num_answered,
        "cut": flood.num_cut,
        "missed": [],
        "problems": flood.problems,
    }


async def _foreign_tokens(
    folder: Path, _prompts: list[Prompt], _expected: Answers, injections: int, _seed: int
) -> dict[str, Any]:
    return _of_foreign(await run_foreign(folder, "tokens", injections))


async def _foreign_text(
    folder: Path, _prompts: list[Prompt], _expected: Answers, injections: int, _seed: int
) -> dict[str, Any]:
    return _of_foreign(await run_foreign(folder, "text", injections))


def _of_foreign(seen: Seen) -> dict[str, Any]:
    return {
        "faults": seen.num_faults,
        "answers": seen.num_answers,
        "cut": seen.num_cut,
        "missed": [],
        "problems": seen.problems,
    }


async def _history(
    folder: Path, _prompts: list[Prompt], _expected: Answers, injections: int, seed: int
) -> dict[str, Any]:
    return await run_history(folder, FAULTS_AN_INJECTION * injections, seed)


async def _pair(
    fault: str, folder: Path, prompts: list[Prompt], expected: Answers, injections: int, seed: int
) -> dict[str, Any]:
    return await run_pair(folder, PAIR_FAULTS[fault], prompts, expected, injections, seed)


OTHERS: Final[dict[str, Run]] = {
    "cloud-cover": _cover,
    "bad-clouds": _bad_clouds,
    "upstream-cancels": _upstream,
    "disconnects": _disconnects,
    "foreign-tokens": _foreign_tokens,
    "foreign-text": _foreign_text,
    "history": _history,
    **{name: partial(_pair, name) for name in PAIR_FAULTS},
}


def line_of_other(row: dict[str, Any]) -> str:
    """One line: its figures, then the verdict."""
    skipped = ("fault", "missed", "problems")
    figures = ", ".join(f"{name} {value}" for name, value in row.items() if name not in skipped)
    verdict = "; ".join(row["missed"]) or "ok"
    if row["problems"]:
        verdict = f"{len(row['problems'])} WRONG: {row['problems'][0]}"
    return f"{row['fault']:16} {figures}: {verdict}"
