"""A frame: the lines of a screen of given columns and rows.

Owns how the room is shared. Must not know terminals, clocks or where the data comes from. Pure.
"""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.text import Text

from gateway.dashboard import EventRow, Overview, WorkerRow
from gateway.telemetry import HistorySample
from herma.top.sections import (
    REQUEST_COLUMNS,
    WORKER_COLUMNS,
    client_items,
    duration,
    header,
    log_lines,
    model_items,
    money_items,
    request_rows,
    troubled_first,
    worker_rows,
)
from herma.top.text import as_ascii, cut, fit, flow, table

WIDE: Final = 150
"""The least columns of a terminal for a second column to the right of the tables."""
SIDE: Final = 54
MAX_EVENTS: Final = 20
_FLOW_LINES: Final = 2
_ROOMY: Final = 40

PARTS: Final = ("all", "workers", "requests", "log")
"""The parts that Tab cycles through."""


class View(NamedTuple):
    """How a frame is drawn. `rows` None: unlimited. `status`, at the right of the first line, says
    whether the frame is live. `keys`: whether the last row names the keys.
    """

    columns: int
    rows: int | None = None
    part: str = "all"
    url: str = ""
    status: str = ""
    is_stale: bool = False
    keys: bool = False
    is_ascii: bool = False


class _Section(NamedTuple):
    """A section, whose first line is its title. `least` lines are shown if there is any room;
    `weight` is its share of the rest. `says_more`: the last shown line counts the hidden ones.
    """

    lines: list[Text]
    least: int
    weight: float
    says_more: bool = False


def draw(
    now: Overview, samples: Sequence[HistorySample], events: Sequence[EventRow], view: View
) -> list[Text]:
    """The lines of a frame, none longer than `view.columns`, at most `view.rows` of them."""
    top = [_title(now, view), *header(now, samples, view.columns)]
    foot = [_keys(view)] if view.keys else []
    room = None if view.rows is None else max(0, view.rows - len(top) - len(foot))
    if view.columns >= WIDE and view.part == "all":
        body = _beside(now, events, view, room)
    else:
        body = _stacked(_sections(now, events, view, view.columns, room), room)
    if foot and room is not None:
        body += [Text()] * (room - len(body))
    lines = [cut(line, view.columns) for line in (*top, *body, *foot)][: view.rows]
    return [as_ascii(line) for line in lines] if view.is_ascii else lines


def _title(now: Overview, view: View) -> Text:
    process = "" if now.process is None else f", process {now.process}"
    replaced = f" ({now.replaced} replaced)" if now.replaced else ""
    process = f", {now.processes} processes{replaced}" if now.processes > 1 else process
    up = duration(1000 * (now.unix_time - now.started_at))
    left = Text.assemble(
        (f"herma {now.version}{process}", "bold"), (f"  {view.url}  up {up}", "soft")
    )
    right = view.status, "critical" if view.is_stale else "good"
    return Text.assemble(fit(left, view.columns - len(view.status) - 1), " ", right)


def _keys(view: View) -> Text:
    line = Text.assemble(("q", "bold"), (" ends   ", "soft"), ("Tab", "bold"))
    for part in PARTS:
        line.append(f" {part}", "bold" if part == view.part else "soft")
    return line


def _sections(
    now: Overview, events: Sequence[EventRow], view: View, width: int, room: int | None
) -> list[_Section]:
    """The sections of the selected part, from top to bottom."""
    part = view.part
    requests = table(REQUEST_COLUMNS, request_rows(now), width)
    workers = _worker_table(now.workers, width, room)
    shown_events = events if part == "log" or room is None else events[-MAX_EVENTS:]
    log = [Text("LOG", "bold"), *log_lines(shown_events)]
    one_of = {
        "workers": _Section(workers, 3, 1.0, says_more=True),
        "requests": _Section(requests, 4, 1.0, says_more=True),
        "log": _Section(log, 3, 0.4),
    }
    if part in one_of:
        return [one_of[part]]
    most = 1 if room is not None and room < _ROOMY else _FLOW_LINES
    flows = [
        _Section(flow(title, items, width, most), 1, 0.2) for title, items in _lists(now) if items
    ]
    return [one_of["workers"], one_of["requests"], *flows, one_of["log"]]


def _lists(now: Overview) -> list[tuple[str, list[Text]]]:
    return [
        ("MODELS", model_items(now)),
        ("CACHED", client_items(now)),
        ("MONEY", money_items(now)),
    ]


def _worker_table(workers: Sequence[WorkerRow], width: int, room: int | None) -> list[Text]:
    if room is not None and len(workers) > room // 3:
        workers = troubled_first(workers)
    rows = worker_rows(workers)
    lines = table(WORKER_COLUMNS, rows, width)
    return lines if rows else [*lines, Text("no worker has dialled in yet", "soft")]


def _beside(now: Overview, events: Sequence[EventRow], view: View, room: int | None) -> list[Text]:
    """Tables on the left, lists and the log on the right."""
    width = view.columns - SIDE - 2
    left = _stacked(_sections(now, events, view, width, room)[:2], room)
    lists = [
        _Section([Text(title, "bold"), *[Text.assemble("  ", item) for item in items]], 2, 0.6)
        for title, items in _lists(now)
        if items
    ]
    shown_events = events if room is None else events[-100:]
    log = _Section([Text("LOG", "bold"), *log_lines(shown_events)], 3, 1.0)
    right = _stacked([*lists, log], room)
    lines = []
    for at in range(max(len(left), len(right))):
        main = left[at] if at < len(left) else Text()
        side = right[at] if at < len(right) else Text()
        lines.append(Text.assemble(fit(main, width), "  ", cut(side, SIDE)))
    return lines


def _stacked(sections: Sequence[_Section], room: int | None) -> list[Text]:
    """The sections one below the other; a cut section counts its hidden lines."""
    if room is None:
        room = sys.maxsize
    shares = share_out(room, [(len(one.lines), one.least, one.weight) for one in sections])
    lines: list[Text] = []
    for section, share in zip(sections, shares, strict=True):
        shown = section.lines[:share]
        hidden = len(section.lines) - share
        if section.says_more and hidden > 0 and share > 1:
            shown[-1] = Text(f"  {hidden + 1} more", "soft")
        lines += shown
    return lines


def share_out(room: int, wants: Sequence[tuple[int, int, float]]) -> list[int]:
    """The lines of each section, from (wanted, least, weight), at most `room` in all. Each gets its
    least in order; the rest goes, line by line, to the section with the fewest lines for its
    weight.
    """
    given = []
    for wanted, least, _ in wants:
        given.append(min(wanted, least, room))
        room -= given[-1]
    while room > 0:
        hungry = [at for at, (wanted, _, _) in enumerate(wants) if given[at] < wanted]
        if not hungry:
            break
        given[min(hungry, key=lambda at: given[at] / wants[at][2])] += 1
        room -= 1
    return given
