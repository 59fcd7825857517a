"""`python -m benchmarks.tiny_eval.parity`: the engine's answers equal those of `transformers`.

The same weights, float32, greedy, on the evaluation's own cases, some of each skill: the rendered
prompts must be equal and so must every token of the answers. The engine answers many at a time, in
chunks and with its prefix cache, `transformers` one after the other. Ends with 1 if an answer
differs. Must not judge whether an answer is right.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from benchmarks.drive import Drive, DrivenAnswer
from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.result_file import result_file
from benchmarks.tiny_eval.__main__ import SEED
from benchmarks.tiny_eval.client import MAX_TOKENS
from config import WorkerConfig
from protocol.sampling import SamplingParams
from training.data import SKILLS, TrainingExample, skill_cases
from training.render import Template, render_prompt
from workers.engine.start import load_runner
from workers.model_dir import builtin_dir

MODEL: Final = "builtin:herma-tiny"
CASES: Final = 12
"""Cases per skill: 204 for 17 skills."""

AT_ONCE: Final = 32
TOKEN_BUDGET: Final = 256
"""Smaller than many prompts, so that they are computed in chunks."""

_GREEDY: Final = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """The difference of two answers: after `num_equal` tokens the logits of `transformers` for its
    own and for the engine's token differ by `margin` (None: one answer only ends earlier).
    """

    skill: str
    asked: str
    num_equal: int
    margin: float | None


@dataclass(frozen=True, slots=True)
class ParityComparison:
    """The number of comparisons, and the differences."""

    num_cases: int
    num_tokens: int
    differences: tuple[AnswerDifference, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """One answer without its end token, and whether it had one."""

    ids: tuple[int, ...]
    has_ended: bool


class Theirs:
    """The model directory as `transformers` reads it, in float32 on the CPU."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32
        )

    def prompt(self, case: TrainingExample) -> tuple[str, list[int]]:
        """The case in the text of the model's chat template, and its ids."""
        text = self.tokenizer.apply_chat_template(
            list(case.prompt),
            tools=list(case.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        return text, self.tokenizer(text)["input_ids"]

    def answer(self, prompt: Sequence[int]) -> Said:
        """The model's greedy answer."""
        given = torch.tensor([prompt])
        out = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
        )
        ids = out[0, len(prompt) :].tolist()
        has_ended = ids[-1] == self.model.config.eos_token_id
        return Said(tuple(ids[:-1] if has_ended else ids), has_ended)

    def margin(self, ids: Sequence[int], own: int, other: int) -> float:
        """How much larger the logit of `own` is than that of `other` after `ids`."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, -1]
        return float(logits[own] - logits[other])


def compare(
    cases: Sequence[TrainingExample], done: Callable[[int], None], engine_model: str = MODEL
) -> ParityComparison:
    """Answer all cases on both sides: the engine with `engine_model`, `transformers` with the
    built-in model. Raises `ValueError` if a rendered prompt differs.
    """
    worker = WorkerConfig(
        name="parity",
        model=engine_model,
        serves="herma-tiny",
        gateways=(),
        device="cpu",
        dtype="float32",
        kv_tokens=65_536,
        max_seqs=AT_ONCE,
        token_budget=TOKEN_BUDGET,
        context_length=8192,
    )
    runner = load_runner(worker, lambda *_: None)
    template = Template((runner.model_dir / "chat_template.jinja").read_text(encoding="utf-8"))
    theirs = Theirs(builtin_dir(MODEL))
    prompts = [_same_prompt(theirs, case, template) for case in cases]
    num_tokens, differences = 0, []
    ours = _engine_answers(Drive(runner), prompts)
    for number, (case, prompt, answer) in enumerate(zip(cases, prompts, ours, strict=True), 1):
        expected = theirs.answer(prompt)
        num_tokens += len(expected.ids)
        if answer != expected:
            differences.append(_difference(theirs, case, prompt, answer, expected))
        done(number)
    return ParityComparison(len(cases), num_tokens, tuple(differences))


def main(argv: list[str] | None = None) -> int:
    """Compare and print. Returns 1 if anything differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiny_eval.parity", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=SEED, help="the evaluation's")
    parser.add_argument("--cases", type=int, default=CASES, help="per skill")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    arguments = parser.parse_args(argv)
    transformers.utils.logging.disable_progress_bar()
    cases = [
        case for skill in SKILLS for case in skill_cases(skill, arguments.seed, arguments.cases)
    ]
    found = compare(cases, progress_bar("same answers", len(cases)))
    num_equal = found.num_cases - len(found.differences)
    print(f"\n{num_equal} of {found.num_cases} answers equal, {found.num_tokens} tokens")
    for difference in found.differences:
        print(f"  {difference}")
    if arguments.json is not None:
        result = _report(arguments, found)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if found.differences else 0


def _report(arguments: argparse.Namespace, found: ParityComparison) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "transformers": version("transformers"),
        "seed": arguments.seed,
        "cases_per_skill": arguments.cases,
        "skills": list(SKILLS),
    } | asdict(found)


def _same_prompt(theirs: Theirs, case: TrainingExample, template: Template) -> list[int]:
    text, ids = theirs.prompt(case)
    if text != render_prompt(case, template):
        raise ValueError(f"a case of {case.skill} is rendered in two ways")
    return ids


def _engine_answers(drive: Drive, prompts: Sequence[Sequence[int]]) -> Iterator[Said]:
    """The engine's answers in the order of the prompts, `AT_ONCE` of them computed together."""
    for start in range(0, len(prompts), AT_ONCE):
        numbers = [drive.submit(prompt, _GREEDY) for prompt in prompts[start : start + AT_ONCE]]
        drive.finish()
        yield from (_said(drive.answers[number]) for number in numbers)


def _said(answer: DrivenAnswer) -> Said:
    has_ended = answer.finished is not None and answer.finished.reason == "stop"
    return Said(tuple(answer.outputs), has_ended)


def _difference(
    theirs: Theirs, case: TrainingExample, prompt: Sequence[int], ours: Said, expected: Said
) -> AnswerDifference:
    asked = str(case.prompt[-1]["content"])[:120]
    pairs = enumerate(zip(ours.ids, expected.ids, strict=False))
    place = next((n for n, (mine, other) in pairs if mine != other), None)
    if place is None:
        return AnswerDifference(case.skill, asked, min(len(ours.ids), len(expected.ids)), None)
    before = [*prompt, *expected.ids[:place]]
    margin = theirs.margin(before, expected.ids[place], ours.ids[place])
    return AnswerDifference(case.skill, asked, place, margin)


if __name__ == "__main__":
    sys.exit(main())
