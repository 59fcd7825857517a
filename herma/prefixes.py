"""`herma doctor --prefixes`: what breaks the prefix cache of clients, and what mends it.

Owns the table for people and the repair that is offered for each kind. Knows the gateway only over
HTTP.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from gateway.conversations import PrefixRow
from herma.gateway_page import asked_of_gateway
from herma.top import GatewayPage

_REMEDIES: Final = {
    "time stamp": 'do = "move" with `lines` that match it, or switch the clock off in the client',
    "counter": 'do = "move" with `lines` that match it',
    "changing id": 'do = "strip" with `lines` that match it',
    "billing line": 'do = "strip" with `lines` that match it',
    "reordered tools": 'do = "sort_tools"',
    "changed tools": "in the client: load all tools at its start, or let it defer them",
    "edited summary": "none: a summary replaces what was said; let the client compact seldom",
    "dropped history": "in the client: a larger window, or compaction in place of a sliding one",
    "rolling mark": "in the client: leave the mark where it was",
    "edited result": "in the client: clear old results seldom and many together",
    "edited message": "in the client",
    "changed instructions": "in the client: put what changes behind what stays",
    "template": "of the model: `chat_template_kwargs`, or a `chat_template` that keeps the history",
}


def show_prefixes(arguments: argparse.Namespace) -> int:
    """Print the findings of the gateway. Raises `HermaError` if it does not answer."""
    found, body = asked_of_gateway(arguments, GatewayPage.prefixes)
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
    else:
        print("\n".join(report(found.prefixes)))
    return 0


def report(rows: tuple[PrefixRow, ...]) -> Iterator[str]:
    """Two lines for each finding, the most costly first."""
    if not rows:
        yield "no client has broken its prefix: nothing found since the gateway's start"
    for one in rows:
        yield (
            f"{one.client}: {one.kind} in {one.place}, {one.times:,} times, up to {one.length:,} "
            f"characters; {one.lost_tokens:,} tokens and {one.lost_s:.1f} s of prefill lost"
        )
        remedy = _REMEDIES.get(one.kind, "none is known")
        where = f'[[repairs]] client = "{one.client}", ' if remedy.startswith("do") else ""
        yield f"    remedy  {where}{remedy}"
