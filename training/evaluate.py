"""The share of held-out cases of each skill that the model answers correctly.

Owns the scores and their table, with those of long conversations apart. Cases come from the
evaluation's own seed, words and tools, and `training.data.example` judges them. Must not know
training.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from training.data import SKILLS, far_facts, long_agents, skill_cases
from training.data.example import ExampleVerdict, judge_raw
from training.decode import generate
from training.model import Qwen3
from training.render import Template, render_prompt
from training.settings import TrainingSettings
from training.tokenizer import END_OF_TURN, token_id

_SEED: Final = 7_000_000
_FAR_FACTS: Final = "long text, a fact of it"
_AGENTS: Final = "long request of an agent"
_NUM_FAILURES: Final = 3
_SHOWN: Final = 240


@dataclass(frozen=True, slots=True)
class SkillResult:
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
    """All scores, and for each skill some ends of prompts with wrong answers.

    `long` are scores of prompts that are longer than any ordinary row of the training.
    """

    scores: tuple[SkillResult, ...]
    long: tuple[SkillResult, ...]
    failures: dict[str, list[tuple[str, str]]]

    @property
    def mean(self) -> float:
        """The mean of the skills' shares of right answers."""
        return sum(score.right for score in self.scores) / len(self.scores)

    def as_json(self) -> dict[str, Any]:
        scores, long = ([asdict(score) for score in some] for some in (self.scores, self.long))
        return {"mean": self.mean, "scores": scores, "long": long, "failures": self.failures}

    def table(self) -> str:
        head = (
            "| skill | cases | right | valid calls | right tool | ends | tokens |",
            "|---|---:|---:|---:|---:|---:|---:|",
        )
        mean = f"| **mean** | | **{self.mean:.1%}** | | | | |"
        return "\n".join([*head, *map(_line, self.scores), mean, *map(_line, self.long)])


def evaluate(
    network: Qwen3, tokenizer: Tokenizer, template: Template, settings: TrainingSettings
) -> Evaluation:
    """Answer held-out cases of each skill, and long ones, greedily and judge them."""
    num_long, long_tokens = settings.long_cases, settings.long_case_tokens
    groups = {skill: skill_cases(skill, _SEED, settings.cases_per_skill) for skill in SKILLS}
    groups[_FAR_FACTS] = far_facts(_SEED, num_long, long_tokens)
    groups[_AGENTS] = long_agents(_SEED, num_long, long_tokens)
    names = [name for name, cases in groups.items() for _ in cases]
    cases = [case for cases in groups.values() for case in cases]
    prompts = [render_prompt(case, template) for case in cases]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(prompts, add_special_tokens=False)]
    eos_id = token_id(tokenizer, END_OF_TURN)
    answers = generate(network, ids, settings.max_new_tokens, eos_id)
    raw = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    verdicts = [judge_raw(case.check, text) for case, text in zip(cases, raw, strict=True)]
    failures: dict[str, list[tuple[str, str]]] = {name: [] for name in groups}
    for name, prompt, text, verdict in zip(names, prompts, raw, verdicts, strict=True):
        if not verdict.ok and len(failures[name]) < _NUM_FAILURES:
            failures[name].append((prompt[-_SHOWN:], text[:_SHOWN]))
    scores = tuple(_score(name, names, verdicts, answers, eos_id) for name in groups)
    return Evaluation(scores[: len(SKILLS)], scores[len(SKILLS) :], failures)


def _score(
    name: str,
    names: Sequence[str],
    verdicts: Sequence[ExampleVerdict],
    answers: Sequence[Sequence[int]],
    eos_id: int,
) -> SkillResult:
    chosen = [index for index, one in enumerate(names) if one == name]
    if not chosen:
        raise ValueError(f"there are no cases of {name!r}")
    return SkillResult(
        skill=name,
        num_cases=len(chosen),
        right=_share([verdicts[i].ok for i in chosen]) or 0.0,
        valid_calls=_share([verdicts[i].valid_tool for i in chosen]),
        right_tool=_share([verdicts[i].right_tool for i in chosen]),
        ended=_share([answers[i][-1:] == [eos_id] for i in chosen]) or 0.0,
        mean_tokens=sum(len(answers[i]) for i in chosen) / len(chosen),
    )


def _line(score: SkillResult) -> str:
    shares = (score.right, score.valid_calls, score.right_tool, score.ended)
    cells = " | ".join("" if share is None else f"{share:.1%}" for share in shares)
    return f"| {score.skill} | {score.num_cases} | {cells} | {score.mean_tokens:.0f} |"


def _share(values: Sequence[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
