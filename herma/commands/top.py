"""`herma top`: the dashboard of a running gateway in a terminal.

Owns the options. Knows the gateway only over HTTP, as a browser does.
"""

import argparse
import shutil
import sys
from typing import Final

from herma.gateway_page import asked_of_gateway
from herma.terminal import console
from herma.top import STYLES, GatewayPage, TopData, View, draw, follow

_PIPE_COLUMNS: Final = 120


def run(arguments: argparse.Namespace) -> int:
    """Show the gateway until q, or once. Raises `HermaError` if it does not answer or refuses the
    key.
    """
    asked_of_gateway(arguments, lambda page: _show(page, arguments))
    return 0


async def _show(page: GatewayPage, arguments: argparse.Namespace) -> None:
    is_unicode = "utf" in (sys.stdout.encoding or "").lower()
    view = View(columns=_columns(), url=page.url, is_ascii=not is_unicode)
    stdout = console(sys.stdout, STYLES)
    if not arguments.once and not arguments.json:
        await follow(page, view, stdout)
        return
    state, body = await page.state()
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
        return
    shown = TopData.of(state)
    assert shown.overview is not None
    lines = draw(shown.overview, list(shown.samples), list(shown.events), view)
    for line in lines:
        line.rstrip()
        stdout.print(line, no_wrap=True)
    text = "\n".join(line.plain for line in lines)
    if not sys.stdout.isatty():
        # A frame cuts what is wider than it; a file or a program has room for whole causes.
        for worker in shown.overview.workers:
            if worker.fault and worker.fault not in text:
                print(f"{worker.name}: {worker.fault}")


def _columns() -> int:
    return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns
