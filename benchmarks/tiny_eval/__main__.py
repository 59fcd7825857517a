"""`python -m benchmarks.tiny_eval`: held-out cases of each skill, asked over HTTP.

The seed, the words and the tools were never seen in training. Prints a table by skill and ends
with 1 when a bar does not hold. `--outside` asks instead prompts that the model has not learned
to answer, and counts the answers that come to an end by themselves.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks.machine import describe_machine
from benchmarks.tiny_eval.client import MAX_TOKENS, Answer, Server, ask_all
from benchmarks.tiny_eval.outside import outside_requests
from benchmarks.tiny_eval.report import (
    ENDS_BAR,
    Bar,
    Score,
    as_json,
    bars,
    bars_table,
    score,
    skills_table,
)
from training.data import SKILLS, judge, skill_cases

SEED = 2026


def main(argv: list[str] | None = None) -> int:
    """Ask, judge, print; 1 if a bar does not hold."""
    arguments = _parser().parse_args(argv)
    server = Server(arguments.url, arguments.model, arguments.concurrency, arguments.stream)
    scores: list[Score] = []
    if arguments.outside:
        held = [_ask_outside(server, arguments.show)]
    else:
        skills = arguments.skill or SKILLS
        scores = [_ask_skill(server, skill, arguments.cases, arguments.show) for skill in skills]
        held = bars(scores)
        print(f"\n{skills_table(scores)}")
    print(f"\n{bars_table(held)}")
    if arguments.json is not None:
        result = {"machine": describe_machine()} | as_json(scores, held)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(bar.holds for bar in held) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_eval", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="herma-tiny")
    parser.add_argument("--cases", type=int, default=200, help="per skill")
    parser.add_argument("--skill", action="append", choices=SKILLS, metavar="NAME")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--outside", action="store_true", help="does every answer end?")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="failures per skill")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def _ask_skill(server: Server, skill: str, num_cases: int, num_shown: int) -> Score:
    cases = skill_cases(skill, SEED, num_cases)
    requests = [{"messages": case.prompt, "tools": case.tools} for case in cases]
    answers = _answers(server, requests, skill)
    verdicts = [
        judge(case.check, answer.text, answer.tool_calls)
        for case, answer in zip(cases, answers, strict=True)
    ]
    wrong = [index for index, verdict in enumerate(verdicts) if not verdict.ok]
    for index in wrong[:num_shown]:
        _show(requests[index], answers[index], str(cases[index].messages[-1]))
    return score(skill, verdicts, [answer.finish_reason != "length" for answer in answers])


def _ask_outside(server: Server, num_shown: int) -> Bar:
    requests = outside_requests()
    answers = _answers(server, requests, "outside")
    endless = [index for index, one in enumerate(answers) if one.finish_reason == "length"]
    for index in endless[:num_shown]:
        _show(requests[index], answers[index], f"an end within {MAX_TOKENS} tokens")
    name = f"ends by itself ({len(requests)} prompts)"
    return Bar(name, 1 - len(endless) / len(requests), ENDS_BAR)


def _answers(server: Server, requests: list[dict[str, Any]], name: str) -> list[Answer]:
    answers: list[Answer] = trio.run(ask_all, server, requests, _progress(name, len(requests)))
    return answers


def _progress(name: str, total: int) -> Callable[[int], None]:
    """A bar that grows in a terminal; elsewhere one line when all is done."""

    def show(done: int) -> None:
        if not sys.stdout.isatty() and done < total:
            return
        bar = "#" * (30 * done // total)
        print(f"\r{name:12} [{bar:30}] {done}/{total}", end="\n" if done == total else "")
        sys.stdout.flush()

    return show


def _show(request: dict[str, Any], answer: Answer, wanted: str) -> None:
    asked = request["messages"][-1]["content"]
    print(f"  asked:  {asked[:300]!r}\n  answer: {answer.text[:300]!r} {answer.tool_calls}")
    print(f"  wanted: {wanted[:400]}")


if __name__ == "__main__":
    sys.exit(main())
