"""`python -m benchmarks.tiny_speed`: whether the built-in model is fast enough on this machine.

Starts `make up` on an installed environment several times, then sends prompts of 500 tokens one at
a time, one stream and sixteen of them, and an agent's prompt of 49 KB with 17 tools. No two prompts
share a prefix except the agent's, which is sent twice. Times are the slowest of all tries, rates
are of all tokens over the wall time, prefills included. Ends with 1 if a bar is missed.
"""

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict
from typing import Any

import trio

from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.result_file import result_file
from benchmarks.serving.client import ServingSample, run_streams, tokens_per_s
from benchmarks.serving.server import running_herma
from benchmarks.tiny_speed.agent import AgentSample, ask_agent
from benchmarks.tiny_speed.report import (
    FIRST_TOKEN_MAX_S,
    ONE_STREAM_MIN,
    READY_MAX_S,
    SIXTEEN_STREAMS_MIN,
    SpeedFigure,
    as_json,
    figures_table,
)

FIRST_TOKENS = 8
PROMPT_WORDS = 245
"""A little more than 500 tokens."""


def main() -> int:
    """Measure, print, and write JSON if asked. Returns 1 if a bar is missed."""
    arguments = _parser().parse_args()
    load_before = os.getloadavg()
    ready_s = [_start_only() for _ in range(arguments.starts - 1)]
    with running_herma() as (base_url, last_ready_s):
        ready_s.append(last_ready_s)
        firsts = _run("first tokens", base_url, 1, arguments.requests, FIRST_TOKENS)
        one = _run("one stream", base_url, 1, 4, arguments.tokens)
        sixteen = _run("16 streams", base_url, 16, 48, arguments.tokens)
        agents = [ask_agent(base_url), ask_agent(base_url)]
    figures = _figures(ready_s, firsts, one, sixteen) + _agent_figures(agents)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "prompt_tokens": round(statistics.mean(sample.prompt_tokens for sample in firsts)),
        "answer_tokens": arguments.tokens,
        "ready_s": ready_s,
        "first_token_s": [sample.first_token_s for sample in firsts],
        "agent": [asdict(sample) for sample in agents],
        "figures": as_json(figures),
    }
    _print(report, figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figure.holds for figure in figures) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_speed", description=__doc__)
    parser.add_argument("--starts", type=int, default=3, help="of `make up`")
    parser.add_argument("--requests", type=int, default=20, help="whose first token is timed")
    parser.add_argument("--tokens", type=int, default=128, help="per answer of a stream")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    return parser


def _start_only() -> float:
    with running_herma() as (_, ready_s):
        return ready_s


def _run(
    name: str, base_url: str, concurrency: int, num_requests: int, tokens: int
) -> list[ServingSample]:
    show = progress_bar(name, num_requests)
    samples: list[ServingSample] = trio.run(
        run_streams, base_url, concurrency, num_requests, tokens, show, PROMPT_WORDS, name
    )
    return samples


def _figures(
    ready_s: list[float],
    firsts: list[ServingSample],
    one: list[ServingSample],
    sixteen: list[ServingSample],
) -> list[SpeedFigure]:
    first_s = [sample.first_token_s for sample in firsts]
    return [
        SpeedFigure("`make up` to ready, slowest", max(ready_s), "s", at_most=READY_MAX_S),
        SpeedFigure("first token, median", statistics.median(first_s), "s"),
        SpeedFigure("first token, slowest", max(first_s), "s", at_most=FIRST_TOKEN_MAX_S),
        SpeedFigure("one stream", tokens_per_s(one), "tokens/s", at_least=ONE_STREAM_MIN),
        SpeedFigure("16 streams", tokens_per_s(sixteen), "tokens/s", at_least=SIXTEEN_STREAMS_MIN),
    ]


def _agent_figures(agents: list[AgentSample]) -> list[SpeedFigure]:
    """The agent's figures, without bars for times; both requests were answered."""
    cold, warm = agents
    rate = (cold.output_tokens - 1) / (cold.total_s - cold.first_token_s)
    return [
        SpeedFigure("agent's prompt: first token", cold.first_token_s, "s"),
        SpeedFigure("the same again", warm.first_token_s, "s"),
        SpeedFigure("agent's prompt: decoding", rate, "tokens/s"),
        SpeedFigure("agent's prompts answered", len(agents), "of 2", at_least=2),
    ]


def _print(report: dict[str, Any], figures: list[SpeedFigure]) -> None:
    agent = report["agent"][0]
    load = report["load_average"]
    print(f"\n{figures_table(figures)}")
    print(f"\nprompts of {report['prompt_tokens']} tokens, answers of {report['answer_tokens']};")
    print(f"the agent's: {agent['body_bytes']} bytes, 17 tools, {agent['prompt_tokens']} tokens")
    print("; ".join(describe_machine().values()))
    print(f"load average {load['before'][0]:.1f} before, {load['after'][0]:.1f} after")


if __name__ == "__main__":
    sys.exit(main())
