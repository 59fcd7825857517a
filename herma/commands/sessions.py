"""`herma sessions`: the conversations of a running gateway.

Owns the table for people. Knows the gateway only over HTTP.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

from gateway.conversations import ConversationList, ConversationRow
from gateway.spending import show_amount
from herma.gateway_page import asked_of_gateway
from herma.terminal import printable, table_lines

_HEAD = (
    "conversation", "client", "turns", "prompt", "cached", "output", "calls", "errors", "cost",
    "idle", "notes",
)  # fmt: skip
_NUM_TEXTS = 2
_MOST_CHARS = 40


def run(arguments: argparse.Namespace) -> int:
    """Print the conversations, or the facts of one. Raises `HermaError` if the gateway does not
    answer, refuses the key, or does not know the name.
    """
    name = arguments.name or ""
    found, body = asked_of_gateway(arguments, lambda page: page.conversations(name))
    if arguments.json:
        sys.stdout.write(body.decode() + "\n")
    elif arguments.name:
        print("\n\n".join("\n".join(facts(one, found)) for one in found.conversations))
    else:
        print("\n".join(table(found)))
    return 0


def table(found: ConversationList) -> Iterator[str]:
    """A line for each conversation."""
    if not found.conversations:
        yield "no conversation yet"
        return
    rows = [_HEAD, *(_cells(one, found) for one in found.conversations)]
    yield from table_lines(rows, right=range(_NUM_TEXTS, len(_HEAD) - 1))


def facts(one: ConversationRow, found: ConversationList) -> Iterator[str]:
    """All that is known of one conversation."""
    began = datetime.fromtimestamp(one.began_at).astimezone()
    yield f"{_printable(one.name)} (named by {one.source}), key {one.key or '-'}, {one.client}"
    if one.parent:
        yield f"  begun by      {_printable(one.parent)}"
    yield f"  began         {began:%Y-%m-%d %H:%M:%S}, {'open' if one.is_open else 'idle'}"
    yield f"  turns         {one.turns:,} ({one.cloud_turns:,} by providers), model {one.model}"
    yield (
        f"  tokens        {one.prompt_tokens:,} of prompts ({_share(one)} cached), "
        f"{one.completion_tokens:,} of answers"
    )
    yield f"  cost          {_cost(one, found)}"
    yield f"  tool calls    {one.tool_calls:,}; conversations begun: {one.children}"
    yield f"  errors        {one.errors:,}" + (f", last {one.last_error}" if one.last_error else "")
    yield (
        f"  time          {one.busy_s:.1f} s of answers, {one.paused_s:.1f} s of pauses, the "
        f"longest {one.longest_pause_s:.1f} s"
    )
    yield f"  loops         {one.loops:,}" + (f", now {_printable(one.loop)}" if one.loop else "")
    yield (
        f"  prefix        broken {one.breaks:,} times: {one.lost_tokens:,} tokens, "
        f"{one.lost_s:.1f} s lost"
    )


def _cells(one: ConversationRow, found: ConversationList) -> Sequence[str]:
    notes = [f"of {_printable(one.parent)}"] if one.parent else []
    notes += ["open"] if one.is_open else []
    notes += [f"loop: {_printable(one.loop)}"] if one.loop else []
    notes += [f"prefix broken {one.breaks} times"] if one.breaks else []
    return (
        _printable(one.name),
        one.client,
        f"{one.turns:,}",
        f"{one.prompt_tokens:,}",
        _share(one),
        f"{one.completion_tokens:,}",
        f"{one.tool_calls:,}",
        f"{one.errors:,}",
        _cost(one, found),
        _span(found.unix_time - one.seen_at),
        ", ".join(notes),
    )


def _share(one: ConversationRow) -> str:
    return f"{100 * one.cached_tokens / one.prompt_tokens:.0f} %" if one.prompt_tokens else "-"


def _cost(one: ConversationRow, found: ConversationList) -> str:
    return f"{show_amount(one.cost, 4)} {found.currency}".rstrip() if one.cost else "-"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _printable(text: str) -> str:
    """A client's own words, of a bounded length."""
    shown = printable(text)
    return shown if len(shown) <= _MOST_CHARS else shown[: _MOST_CHARS - 1] + "…"
