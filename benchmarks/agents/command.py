"""`herma bench agents`: from the command line to the table.

Owns the options, the order of the runs and the table. Must not know what an agent does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import trio

from benchmarks.agents.load import AgentFigures, AgentLoad, AgentPace, as_row
from benchmarks.agents.shape import num_fitting
from benchmarks.http.client import Endpoint, RequestOptions, ServerConnections
from benchmarks.http.command import EXIT_INTERRUPTED, endpoints_of
from benchmarks.http.run import sized
from benchmarks.http.workload import PromptWords, TokenScale, server_order
from benchmarks.progress import ProgressBar
from protocol.errors import ConfigError

_HEAD: Final = (
    "agents", "server", "tok/s", "with prompts", "hits", "first token p50 / p90, ms",
    "gap p99, ms", "turns", "errors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """Servers, and how many agents work at them at once: multiples of what fits."""

    endpoints: tuple[Endpoint, ...]
    ratios: tuple[float, ...]
    num_fit: float
    seconds: float
    warm_s: float
    size: float
    seed: int
    options: RequestOptions
    output_tokens: int | None

    def load(self, ratio: float) -> AgentPace:
        """The load of that multiple."""
        count = max(1, round(ratio * self.num_fit))
        return AgentPace(count, self.seconds, self.warm_s, self.size, self.seed, self.output_tokens)


def run_command(arguments: argparse.Namespace) -> int:
    """Run and print. Returns 0 if every request got a whole answer, else 1. Raises `HermaError`."""
    plan = plan_of(arguments, os.environ)
    rows: list[dict[str, Any]] = []
    progress = ProgressBar(len(plan.ratios) * len(plan.endpoints))
    status = EXIT_INTERRUPTED
    try:
        trio.run(_run, plan, rows, progress)
        status = 1 if any(row["num_errors"] for row in rows) else 0
    except* KeyboardInterrupt:
        pass
    if rows:
        progress.say("\n".join(["", *table(rows), "", note(plan)]))
    if arguments.json is not None:
        text = json.dumps({"seed": plan.seed, "rows": rows}, indent=2)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
    return status


def plan_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> AgentPlan:
    """The plan of the options. Raises `ConfigError`."""
    try:
        ratios = tuple(float(text) for text in arguments.ratios.split(","))
    except ValueError as error:
        raise ConfigError(f"--ratios {arguments.ratios}: numbers with commas between") from error
    if not all(0 < ratio < inf for ratio in ratios):
        raise ConfigError(f"--ratios {arguments.ratios}: each is more than 0")
    for option in ("kv_tokens", "seconds", "size", "patience"):
        if not 0 < getattr(arguments, option) < inf:
            raise ConfigError(f"--{option.replace('_', '-')} must be more than 0")
    if not 0 <= arguments.warm < inf:
        raise ConfigError("--warm must be at least 0 seconds")
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().randrange(10**9)
    return AgentPlan(
        endpoints=tuple(endpoints_of(arguments, environ)),
        ratios=ratios,
        num_fit=num_fitting(arguments.kv_tokens, arguments.size),
        seconds=arguments.seconds,
        warm_s=arguments.warm,
        size=arguments.size,
        seed=seed,
        options=RequestOptions(1, arguments.patience, not arguments.no_ignore_eos),
        output_tokens=arguments.output,
    )


async def _run(plan: AgentPlan, rows: list[dict[str, Any]], progress: ProgressBar) -> None:
    """Every ratio at every server, the servers in turns."""
    most = max(plan.load(ratio).num_agents for ratio in plan.ratios)
    with ExitStack() as stack:
        clients = []
        for endpoint in plan.endpoints:
            client = stack.enter_context(closing(ServerConnections(endpoint, plan.options, most)))
            progress.begin(f"{endpoint.name}: sizing prompts")
            scale = await sized(client, PromptWords(), f"{plan.seed}/sizing")
            clients.append((client, scale or TokenScale()))
        for turn, ratio in enumerate(plan.ratios):
            for client, scale in server_order(clients, turn):
                name, load = client.endpoint.name, plan.load(ratio)
                progress.begin(f"{load.num_agents} agents, {name}")
                found = await AgentLoad(client, load, scale).run()
                rows.append(as_row(ratio, name, found))
                progress.end()
                progress.note(f"{ratio:g}x {name}: {summary(found)}")


def summary(found: AgentFigures) -> str:
    """One run in a line."""
    hits = "" if found.hit_rate is None else f", hits {found.hit_rate:.2f}"
    return f"{found.num_agents} agents, {found.tokens_per_s:,.0f} tok/s{hits}"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: a line for each multiple and server."""
    text = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for row in rows:
        hits = "" if row["hit_rate"] is None else f"{row['hit_rate']:.3f}"
        cells = (
            f"{row['ratio']:g}x: {row['num_agents']}",
            row["server"],
            f"{row['tokens_per_s']:,.0f}",
            f"{row['total_per_s']:,.0f}",
            hits,
            f"{_ms(row['first_ms_p50'])} / {_ms(row['first_ms_p90'])}",
            _ms(row["gap_ms_p99"]),
            str(row["num_turns"]),
            ", ".join(f"{count} {kind}" for kind, count in row["errors"].items()) or "0",
        )
        text.append(f"| {' | '.join(cells)} |")
    return text


def note(plan: AgentPlan) -> str:
    """How it was measured."""
    return (
        f"1x is {plan.num_fit:.1f} agents; {plan.seconds:g} s each after {plan.warm_s:g} s; "
        f"lengths x {plan.size:g}; seed {plan.seed} (with the same seed again, servers may find "
        "the prompts in their caches)"
    )


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
