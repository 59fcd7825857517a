"""`python -m benchmarks.tiny_eval.quantised`: the cost of 8 bits in the built-in model's quality.

The evaluation's own cases, some of each skill, greedy, in one process: with 16-bit weights, with
weights in 8 bits, with keys and values in 8 bits, and with both. Ends with 1 if any of them loses
more than `MOST_LOST` of the mean share of right answers.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tokenizers import Tokenizer

from benchmarks.drive import Drive
from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.result_file import result_file
from benchmarks.tiny_eval.__main__ import SEED
from benchmarks.tiny_eval.client import MAX_TOKENS
from config import WorkerConfig
from protocol.sampling import SamplingParams
from training.data import SKILLS, TrainingExample, skill_cases
from training.data.example import judge_raw
from training.render import Template, render_prompt
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner

CASES: Final = 60
"""Cases per skill."""

MOST_LOST: Final = 0.01

IN_4_BITS: Final = "weights in 4 bits"
"""Shown, and held to no bar."""

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "as they are": {},
    "weights": {"quantization": "fp8"},
    "keys and values": {"kv_dtype": "fp8"},
    "both": {"quantization": "fp8", "kv_dtype": "fp8"},
    IN_4_BITS: {"quantization": "int4"},
}
"""Keys of a worker's configuration. The others are compared with the first."""

_AT_ONCE: Final = 32
_GREEDY: Final = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)


def main(argv: list[str] | None = None) -> int:
    """Answer, judge, print. Returns 1 if 8 bits lose too much."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiny_eval.quantised", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=SEED, help="the evaluation's")
    parser.add_argument("--cases", type=int, default=CASES, help="per skill")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    arguments = parser.parse_args(argv)
    cases = [
        case for skill in SKILLS for case in skill_cases(skill, arguments.seed, arguments.cases)
    ]
    shares = {
        name: right_shares(
            runner_of(changes, arguments.device), cases, progress_bar(name, len(cases))
        )
        for name, changes in VARIANTS.items()
    }
    print(f"\n{_table(shares)}")
    if arguments.json is not None:
        result = {
            "machine": describe_machine(),
            "seed": arguments.seed,
            "cases_per_skill": arguments.cases,
            "right": shares,
            "lost": lost(shares),
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    found = lost(shares)
    return 1 if max(found[name] for name in found if name != IN_4_BITS) > MOST_LOST else 0


def runner_of(changes: dict[str, Any], device: str) -> ModelRunner:
    """The built-in model with some keys of its configuration changed."""
    worker = WorkerConfig(
        name="quantised",
        model="builtin:herma-tiny",
        serves="herma-tiny",
        gateways=(),
        device=device,
        kv_tokens=65_536,
        max_seqs=_AT_ONCE,
        token_budget=2048,
        context_length=8192,
        **changes,
    )
    return load_runner(worker, lambda *_: None)


def right_shares(
    runner: ModelRunner, cases: Sequence[TrainingExample], done: Callable[[int], None]
) -> dict[str, float]:
    """The share of right answers by skill."""
    right: dict[str, list[bool]] = {}
    for number, (case, text) in enumerate(zip(cases, _answers(runner, cases), strict=True), 1):
        right.setdefault(case.skill, []).append(judge_raw(case.check, text).ok)
        done(number)
    return {skill: sum(verdicts) / len(verdicts) for skill, verdicts in right.items()}


def lost(shares: dict[str, dict[str, float]]) -> dict[str, float]:
    """How far the mean share of each variant is below the first one's."""
    first, *others = shares
    return {name: _mean(shares[first]) - _mean(shares[name]) for name in others}


def _answers(runner: ModelRunner, cases: Sequence[TrainingExample]) -> Iterator[str]:
    """The texts, `_AT_ONCE` computed together."""
    template = Template((runner.model_dir / "chat_template.jinja").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(runner.model_dir / "tokenizer.json"))
    drive = Drive(runner)
    for start in range(0, len(cases), _AT_ONCE):
        prompts = [render_prompt(case, template) for case in cases[start : start + _AT_ONCE]]
        encoded = tokenizer.encode_batch_fast(prompts)
        numbers = [drive.submit(one.ids, _GREEDY) for one in encoded]
        drive.finish()
        for number in numbers:
            ids = [i for i in drive.answers[number].outputs if i not in runner.eos_ids]
            yield tokenizer.decode(ids, skip_special_tokens=False)


def _mean(by_skill: dict[str, float]) -> float:
    return sum(by_skill.values()) / len(by_skill)


def _table(shares: dict[str, dict[str, float]]) -> str:
    lines = ["right answers, %" + "".join(f"{name:>18}" for name in shares)]
    skills = list(next(iter(shares.values())))
    for skill in skills:
        columns = "".join(f"{100 * by_skill[skill]:18.1f}" for by_skill in shares.values())
        lines.append(f"{skill:16}{columns}")
    means = "".join(f"{100 * _mean(by_skill):18.2f}" for by_skill in shares.values())
    return "\n".join([*lines, f"{'mean':16}{means}"])


if __name__ == "__main__":
    sys.exit(main())
