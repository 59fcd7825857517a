"""`python -m benchmarks.tiny_eval`: held-out cases of each skill over HTTP.

Words, tools and seeds were not in the training. Prints a table by skill and ends with 1 if a bar is
missed. `--outside` sends prompts that the model has not learned to answer, and counts the answers
that end by themselves. `--both` sends each case twice, whole and streamed: the answers must be
equal.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import trio

from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.result_file import result_file
from benchmarks.serving.server import running_herma
from benchmarks.tiny_eval.client import MAX_TOKENS, EvaluatedAnswer, EvaluatedServer, ask_all
from benchmarks.tiny_eval.outside import outside_prompts
from benchmarks.tiny_eval.report import (
    Endings,
    EvaluationBar,
    SkillScore,
    StreamComparison,
    as_json,
    bars,
    bars_table,
    comparisons_as_json,
    comparisons_table,
    endings,
    endings_as_json,
    endings_table,
    ends_bar,
    same_bar,
    score,
    skills_as_json,
    skills_table,
)
from training.data import SKILLS, ExampleVerdict, TrainingExample, judge, skill_cases

SEED = 2026


def main(argv: list[str] | None = None) -> int:
    """Ask, judge, print. Returns 1 if a bar is missed."""
    arguments = _parser().parse_args(argv)
    measure = _outside if arguments.outside else _both_forms if arguments.both else _skills
    with running_herma() if arguments.serve else nullcontext((arguments.url, 0.0)) as (url, _):
        server = EvaluatedServer(url, arguments.model, arguments.concurrency, arguments.stream)
        held, result = measure(server, arguments)
    print(f"\n{bars_table(held)}")
    if arguments.json is not None:
        result = {"machine": describe_machine()} | result | as_json(held)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(bar.holds for bar in held) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiny_eval", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--serve", action="store_true", help="run `make up` and ask that instead")
    parser.add_argument("--model", default="herma-tiny")
    parser.add_argument("--seed", type=int, default=SEED, help="other cases of the same skills")
    parser.add_argument("--cases", type=int, default=200, help="per skill")
    parser.add_argument("--skill", action="append", choices=SKILLS, metavar="NAME")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--both", action="store_true", help="the same whole and streamed?")
    parser.add_argument("--outside", action="store_true", help="does every answer end?")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="failures per skill")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    return parser


def _skills(
    server: EvaluatedServer, arguments: argparse.Namespace
) -> tuple[list[EvaluationBar], dict[str, Any]]:
    scores = [_ask_skill(server, skill, arguments) for skill in arguments.skill or SKILLS]
    print(f"\n{skills_table(scores)}")
    return bars(scores), {"seed": arguments.seed} | skills_as_json(scores)


def _ask_skill(server: EvaluatedServer, skill: str, arguments: argparse.Namespace) -> SkillScore:
    cases = skill_cases(skill, arguments.seed, arguments.cases)
    requests = _requests(cases)
    answers = _answers(server, requests, skill)
    verdicts = _verdicts(cases, answers)
    wrong = [index for index, verdict in enumerate(verdicts) if not verdict.ok]
    for index in wrong[: arguments.show]:
        _show(requests[index], answers[index], str(cases[index].messages[-1]))
    return score(skill, verdicts, [_ended(answer) for answer in answers])


def _both_forms(
    server: EvaluatedServer, arguments: argparse.Namespace
) -> tuple[list[EvaluationBar], dict[str, Any]]:
    skills = [_ask_twice(server, skill, arguments) for skill in arguments.skill or SKILLS]
    print(f"\n{comparisons_table(skills)}")
    return [same_bar(skills)], {"seed": arguments.seed} | comparisons_as_json(skills)


def _ask_twice(
    server: EvaluatedServer, skill: str, arguments: argparse.Namespace
) -> StreamComparison:
    cases = skill_cases(skill, arguments.seed, arguments.cases)
    requests = _requests(cases)
    whole = _answers(replace(server, stream=False), requests, f"{skill}, whole")
    streamed = _answers(replace(server, stream=True), requests, f"{skill}, streamed")
    differing = [index for index in range(len(cases)) if whole[index] != streamed[index]]
    for index in differing[: arguments.show]:
        _show(requests[index], streamed[index], repr(whole[index]))
    return StreamComparison(
        skill,
        len(cases),
        len(cases) - len(differing),
        sum(verdict.ok for verdict in _verdicts(cases, whole)),
        sum(verdict.ok for verdict in _verdicts(cases, streamed)),
    )


def _requests(cases: Sequence[TrainingExample]) -> list[dict[str, Any]]:
    return [{"messages": case.prompt, "tools": case.tools} for case in cases]


def _verdicts(
    cases: Sequence[TrainingExample], answers: Sequence[EvaluatedAnswer]
) -> list[ExampleVerdict]:
    return [
        judge(case.check, answer.text, answer.tool_calls)
        for case, answer in zip(cases, answers, strict=True)
    ]


def _outside(
    server: EvaluatedServer, arguments: argparse.Namespace
) -> tuple[list[EvaluationBar], dict[str, Any]]:
    kinds = [
        _ask_kind(server, kind, [prompt.request for prompt in prompts], arguments.show)
        for kind, prompts in groupby(outside_prompts(), lambda prompt: prompt.kind)
    ]
    print(f"\n{endings_table(kinds)}")
    return [ends_bar(kinds)], {"max_tokens": MAX_TOKENS} | endings_as_json(kinds)


def _ask_kind(
    server: EvaluatedServer, kind: str, requests: list[dict[str, Any]], num_shown: int
) -> Endings:
    answers = _answers(server, requests, kind)
    endless = [index for index, answer in enumerate(answers) if not _ended(answer)]
    for index in endless[:num_shown]:
        _show(requests[index], answers[index], f"an end within {MAX_TOKENS} tokens")
    texts = [request["messages"][-1]["content"] for request in requests]
    return endings(kind, texts, [_ended(answer) for answer in answers])


def _ended(answer: EvaluatedAnswer) -> bool:
    return answer.finish_reason != "length"


def _answers(
    server: EvaluatedServer, requests: list[dict[str, Any]], name: str
) -> list[EvaluatedAnswer]:
    progress = progress_bar(name, len(requests))
    answers: list[EvaluatedAnswer] = trio.run(ask_all, server, requests, progress)
    return answers


def _show(request: dict[str, Any], answer: EvaluatedAnswer, wanted: str) -> None:
    asked = request["messages"][-1]["content"]
    print(f"  asked:  {asked[:300]!r}\n  answer: {answer.text[:300]!r} {answer.tool_calls}")
    print(f"  wanted: {wanted[:400]}")


if __name__ == "__main__":
    sys.exit(main())
