"""How many held-out cases of each skill the model gets right.

Owns the scores and their table. Cases come from the evaluation's own seed, words and tools, and are
judged by the data's own judge. Must not know training.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from training.data import SKILLS, skill_cases
from training.data.example import Example, Verdict, judge_raw
from training.decode import generate
from training.model import Qwen3
from training.render import Template, render_prompt
from training.tokenizer import END_OF_TURN, token_id

_SEED: Final = 7_000_000
_NUM_FAILURES: Final = 3
_SHOWN: Final = 240


@dataclass(frozen=True, slots=True)
class Score:
    """One skill's result, in shares; None where no case asks for it."""

    skill: str
    num_cases: int
    right: float
    valid_calls: float | None
    right_tool: float | None
    ended: float
    mean_tokens: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All scores, and for each skill some prompts' ends with the wrong answers to them."""

    scores: tuple[Score, ...]
    failures: dict[str, list[tuple[str, str]]]

    @property
    def mean(self) -> float:
        """The mean of the skills' shares of right answers."""
        return sum(score.right for score in self.scores) / len(self.scores)

    def as_json(self) -> dict[str, Any]:
        """Plain objects."""
        scores = [asdict(score) for score in self.scores]
        return {"mean": self.mean, "scores": scores, "failures": self.failures}

    def table(self) -> str:
        """A Markdown table."""
        lines = [
            "| skill | cases | right | valid calls | right tool | ends | tokens |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for s in self.scores:
            shares = (s.right, s.valid_calls, s.right_tool, s.ended)
            cells = " | ".join("" if share is None else f"{share:.1%}" for share in shares)
            lines.append(f"| {s.skill} | {s.num_cases} | {cells} | {s.mean_tokens:.0f} |")
        lines.append(f"| **mean** | | **{self.mean:.1%}** | | | | |")
        return "\n".join(lines)


def evaluate(
    network: Qwen3, tokenizer: Tokenizer, template: Template, cases_per_skill: int, max_new: int
) -> Evaluation:
    """Answer `cases_per_skill` held-out cases of each skill greedily and judge them."""
    cases = [case for skill in SKILLS for case in skill_cases(skill, _SEED, cases_per_skill)]
    prompts = [render_prompt(case, template) for case in cases]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(prompts, add_special_tokens=False)]
    eos_id = token_id(tokenizer, END_OF_TURN)
    answers = generate(network, ids, max_new, eos_id)
    raw = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    verdicts = [judge_raw(case.check, text) for case, text in zip(cases, raw, strict=True)]
    failures: dict[str, list[tuple[str, str]]] = {skill: [] for skill in SKILLS}
    for case, prompt, text, verdict in zip(cases, prompts, raw, verdicts, strict=True):
        if not verdict.ok and len(failures[case.skill]) < _NUM_FAILURES:
            failures[case.skill].append((prompt[-_SHOWN:], text[:_SHOWN]))
    scores = tuple(_score(skill, cases, verdicts, answers, eos_id) for skill in SKILLS)
    return Evaluation(scores, failures)


def _score(
    skill: str,
    cases: Sequence[Example],
    verdicts: Sequence[Verdict],
    answers: Sequence[Sequence[int]],
    eos_id: int,
) -> Score:
    chosen = [index for index, case in enumerate(cases) if case.skill == skill]
    if not chosen:
        raise ValueError(f"there are no cases of {skill!r}")
    return Score(
        skill=skill,
        num_cases=len(chosen),
        right=_share([verdicts[i].ok for i in chosen]) or 0.0,
        valid_calls=_share([verdicts[i].valid_tool for i in chosen]),
        right_tool=_share([verdicts[i].right_tool for i in chosen]),
        ended=_share([answers[i][-1:] == [eos_id] for i in chosen]) or 0.0,
        mean_tokens=sum(len(answers[i]) for i in chosen) / len(chosen),
    )


def _share(values: Sequence[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
