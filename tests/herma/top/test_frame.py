"""Frames of a made-up fleet: what they say, and that they fit."""

import functools
import re

import hypothesis.strategies as st
import msgspec
from hypothesis import given
from rich.text import Text

from gateway.dashboard import EventRow, Overview
from gateway.dashboard.rows import ProviderRow
from gateway.spending import Saving
from gateway.telemetry import HistorySample
from herma.top import View, draw
from herma.top.frame import PARTS, share_out
from herma.top.sections import amount, count, duration, money_items, percent, rate
from tests.fakes.shown_fleet import ShownFleet

Data = tuple[Overview, tuple[HistorySample, ...], tuple[EventRow, ...]]


@functools.cache
def data_of(num_workers: int = 16) -> Data:
    """An hour's end of a fleet of 16, of which `num_workers` are shown."""
    fleet = ShownFleet().past(600)
    fleet.publish(40)
    board = fleet.dashboard()
    overview = board.overview({})
    overview = msgspec.structs.replace(overview, workers=overview.workers[-num_workers:])
    if not num_workers:
        overview = msgspec.structs.replace(overview, workers=())
    return overview, tuple(board.samples()[1]), board.log().events


def as_plain(lines: list[Text]) -> str:
    return "".join(line.plain.rstrip() + "\n" for line in lines)


def text_of(columns: int, rows: int | None = None, part: str = "all", workers: int = 16) -> str:
    return as_plain(draw(*data_of(workers), View(columns, rows, part, keys=rows is not None)))


@given(
    columns=st.integers(20, 220),
    rows=st.integers(1, 80),
    part=st.sampled_from(PARTS),
    num_workers=st.sampled_from((0, 2, 16)),
)
def test_a_frame_fits_every_screen(columns: int, rows: int, part: str, num_workers: int) -> None:
    """No line is wider than the screen, none is over."""
    view = View(columns, rows, part, keys=True, status="live", url="http://127.0.0.1:8080")
    lines = draw(*data_of(num_workers), view)
    assert len(lines) <= rows
    assert max(line.cell_len for line in lines) <= columns


def test_a_usual_terminal_shows_all_parts() -> None:
    """80 columns, 24 rows, 16 workers: those in trouble first, and how many are left out."""
    text = text_of(80, 24)
    assert "All models are served; box-14 and h200-starting are not ready." in text
    assert re.search(r"box-14 +● down: exit code 137: killed by the kernel", text)
    assert "loading weights 62 %" in text
    for title in ("WORKER ", "MODEL ", "MODELS ", "CACHED ", "MONEY ", "LOG"):
        assert f"\n{title}" in text
    assert " more\n" in text
    assert "cache 6" in text


def test_a_pipe_gets_everything() -> None:
    """No row is left out: workers in order, open and ended requests, limits, events."""
    overview, _, events = data_of()
    lines = text_of(120).splitlines()
    text = "\n".join(lines)
    assert [line.split()[0] for line in lines if line.startswith(("box-", "h200"))] == [
        one.name for one in overview.workers
    ]
    assert " more" not in text
    assert all(one.id[9:17] in text for one in (*overview.requests, *overview.recent))
    assert "queued 1." in text
    assert "deepseek daily 4.24 of 5.00 EUR, 0.24 EUR reserved" in text
    assert sum(line.count("● ") for line in lines[lines.index("LOG") + 1 :]) == len(events)


def test_a_wide_screen_has_two_columns() -> None:
    """Lists and the log stand to the right of the tables."""
    lines = text_of(180, 50).splitlines()
    assert any("WORKER" in line and "MODELS" in line[120:] for line in lines)
    assert any("saved 66.48 EUR" in line[120:] for line in lines)
    assert any(line[126:].startswith("LOG") for line in lines)


def test_unknown_money_is_a_question_mark() -> None:
    """Unknown costs of providers and of savings are question marks; 0 would read as free."""
    saving = Saving(
        model="m",
        provider="",
        prompt_tokens=9,
        cached_tokens=0,
        completion_tokens=9,
        month=None,
        day=None,
    )
    overview = msgspec.structs.replace(
        data_of()[0],
        providers=(ProviderRow("a", False, 0, 0, 2), ProviderRow("b", False, 1_500_000, 0, 1)),
        savings=(saving,),
    )
    lines = [line.plain for line in money_items(overview)]
    alone = msgspec.structs.replace(overview, providers=())
    assert not any("saved" in line.plain for line in money_items(alone))
    assert lines[-3:] == ["a ? since the start", "b 1.50 EUR + ? since the start", "m saved ?"]


def test_tab_leads_to_one_part() -> None:
    """All of the room is for it."""
    text = text_of(80, 24, "workers")
    assert text.count("box-") >= 15
    assert "LOG" not in text
    assert text_of(80, 24, "log").count("\n") == 24


def test_hits_on_the_host_are_a_share_of_all_that_was_found() -> None:
    overview, *rest = data_of()
    said = {"hit_tokens": 900, "loaded_tokens": 300}
    workers = tuple(msgspec.structs.replace(one, **said) for one in overview.workers)
    shown = msgspec.structs.replace(overview, workers=workers)
    view = View(160, 40, "workers", keys=True)
    assert "from host 33 %" in as_plain(draw(shown, *rest, view))
    assert "from host" not in as_plain(draw(overview, *rest, view))


def test_hit_rates_by_tier_and_what_evictions_cost_are_in_the_head() -> None:
    overview, *rest = data_of()
    said = {
        "hit_tokens": 900, "loaded_tokens": 300, "prompt_tokens": 1000,
        "recomputed_tokens": 5000, "host_blocks": 0,
    }  # fmt: skip
    first = msgspec.structs.replace(overview.workers[0], **said)
    shown = msgspec.structs.replace(overview, workers=(first, *overview.workers[1:]))
    text = as_plain(draw(shown, *rest, View(160, 40, "workers", keys=True)))
    assert "tiers 60 % card, 30 % host" in text
    assert "again 5000" in text
    assert "tiers" not in as_plain(draw(overview, *rest, View(160, 40, "workers", keys=True)))


def test_without_workers_it_says_so() -> None:
    assert "no worker has dialled in yet" in text_of(80, 24, workers=0)


@given(
    room=st.integers(0, 60),
    wants=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 5), st.sampled_from((0.2, 0.5, 1.0))),
        max_size=6,
    ),
)
def test_no_line_of_the_room_is_wasted(room: int, wants: list[tuple[int, int, float]]) -> None:
    """All of it is given as long as something is wanted, and nothing that is not."""
    given_lines = share_out(room, wants)
    assert sum(given_lines) == min(room, sum(wanted for wanted, _, _ in wants))
    assert all(one <= wanted for one, (wanted, _, _) in zip(given_lines, wants, strict=True))


def test_numbers_are_short() -> None:
    assert [count(n) for n in (0, 9_512, 18_300, 427_000, 4_270_000, 2.5e9)] == [
        "0", "9512", "18.3k", "427k", "4.27M", "2.50G",
    ]  # fmt: skip
    times = (None, 4.21, 310, 1_240, 12_500, 125_000, 11_520_000, 3.6e8)
    assert [duration(ms) for ms in times] == [
        "-", "4.2 ms", "310 ms", "1.24 s", "12.5 s", "2m05s", "3h12m", "4d04h",
    ]  # fmt: skip
    assert [percent(*one) for one in ((0, 0), (1, 500), (2, 3))] == ["-", "<1 %", "66 %"]
    assert [rate(n) for n in (0, 7.41, 112.4)] == ["0", "7.4", "112"]
    assert [amount(n, "EUR") for n in (0, 40_000, 4_240_000)] == [
        "0.00 EUR",
        "0.0400 EUR",
        "4.24 EUR",
    ]
