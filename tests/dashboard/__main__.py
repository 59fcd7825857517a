"""`python -m tests.dashboard [--picture FILE] [--terminal FILE] [--paint]`: the page over a fleet
that lives.

By itself it serves the page until Ctrl-C, to be looked at by hand. `--picture` writes a PNG of it,
`--terminal` one of `herma top`; `--paint` measures how soon a browser shows the page.
"""

import argparse
import io
import math
import statistics
from pathlib import Path

import trio
from rich.console import Console, Group
from rich.terminal_theme import MONOKAI
from rich.theme import Theme

from benchmarks.machine import describe_machine
from benchmarks.result_file import result_file
from herma.top import STYLES, View, draw
from tests.fakes.browser import Browser, open_browser
from tests.fakes.shown_fleet import ShownFleet, shown

_RUNS = 9
_SCREEN = (100, 28)
_DOCUMENT = (
    "<meta charset=utf-8><style>{stylesheet}body{{margin:12px;background:#16171a;color:#d8d8d4}}"
    "pre{{margin:0;font:13px/17px DejaVu Sans Mono,monospace}}</style><pre>{code}</pre>"
)
_PAINT = (
    "new Promise(done => { const look = () => {"
    "const paint = performance.getEntriesByName('first-contentful-paint')[0];"
    "const filled = performance.getEntriesByName('filled')[0];"
    "paint && filled ? done([paint.startTime, filled.startTime]) : setTimeout(look, 20) };"
    "look() })"
)
_PAUSE = (
    "new Promise(done => { let worst = 0, last = performance.now(), left = 100;"
    "const tick = () => { const now = performance.now(); worst = Math.max(worst, now - last - 20);"
    "last = now; --left ? setTimeout(tick, 20) : done(worst) }; tick() })"
)
"""The longest time in two seconds for which the page did nothing else."""


async def _picture(browser: Browser, url: str, path: Path) -> None:
    page = await browser.open(f"{url}/", 1280, 800)
    await page.until("document.querySelectorAll('#workers tr').length > 4")
    await trio.sleep(3)
    await page.picture(path)


async def _terminal(browser: Browser, fleet: ShownFleet, path: Path) -> None:
    """A frame of `herma top` as a browser draws it in the colours of a dark terminal."""
    board = fleet.dashboard()
    view = View(*_SCREEN, url="http://127.0.0.1:8080", status="live", keys=True)
    lines = draw(board.overview({}), board.samples()[1], board.log().events, view)
    theme = Theme(STYLES)
    drawn = Console(record=True, file=io.StringIO(), width=_SCREEN[0], theme=theme)
    drawn.print(Group(*lines))
    document = drawn.export_html(theme=MONOKAI, code_format=_DOCUMENT)
    columns, num_rows = _SCREEN
    page = await browser.open("about:blank", 8 * columns + 24, 17 * num_rows + 24)
    await page.run(f"document.write({document!r})")
    await page.picture(path)


async def _paint(browser: Browser, url: str) -> None:
    paints: list[float] = []
    rows: list[float] = []
    pauses: list[float] = []
    for _ in range(_RUNS):
        page = await browser.open(f"{url}/")
        await page.until("!!document.getElementById('workers')")
        paint_ms, filled_ms = await page.run(_PAINT)
        paints.append(paint_ms)
        rows.append(filled_ms)
        pauses.append(await page.run(_PAUSE))
        await page.close()
    machine = describe_machine(("trio",))
    print(f"{machine['cpu']}; medians of {_RUNS} new tabs, 16 workers, 200 events/s")
    print(f"first contentful paint {statistics.median(paints):.0f} ms")
    print(f"the fleet's rows are there {statistics.median(rows):.0f} ms")
    print(f"longest pause in 2 s {statistics.median(pauses):.0f} ms")


async def _main(arguments: argparse.Namespace) -> None:
    fleet = ShownFleet().past()
    fleet.publish(24)
    rate = 200 if arguments.paint else 0
    async with shown(fleet, events_per_s=rate, patience_s=math.inf) as url:
        if arguments.picture is arguments.terminal is None and not arguments.paint:
            print(f"{url}/", flush=True)
            await trio.sleep_forever()
        async with open_browser() as browser:
            if arguments.picture is not None:
                await _picture(browser, url, arguments.picture)
            if arguments.terminal is not None:
                await _terminal(browser, fleet, arguments.terminal)
            if arguments.paint:
                await _paint(browser, url)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard", description=__doc__)
    parser.add_argument("--picture", type=result_file, metavar="FILE")
    parser.add_argument("--terminal", type=result_file, metavar="FILE")
    parser.add_argument("--paint", action="store_true")
    trio.run(_main, parser.parse_args())
