"""Shares of right answers by skill, of answers that end, and their bars.

Owns the bars and the tables. Must not ask anything.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from training.data import ExampleVerdict

MEAN_BAR: Final = 0.95
SKILL_BAR: Final = 0.90
SKILL_BARS: Final = {"natural": 0.80}
"""Bars of harder skills: everyday words for tools that share no word with the training."""

VALID_CALLS_BAR: Final = 0.99
RIGHT_TOOL_BAR: Final = 0.97
ENDS_BAR: Final = 0.99
SAME_BAR: Final = 1.0
SHOWN_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class SkillScore:
    """One skill: the numbers of cases, of right ones, of calls tried and valid, of tools asked for
    and right, and of answers that ended.
    """

    skill: str
    num_cases: int
    num_right: int
    num_tried: int
    num_valid: int
    num_tool_cases: int
    num_right_tool: int
    num_ended: int

    @property
    def right(self) -> float:
        return self.num_right / self.num_cases


@dataclass(frozen=True, slots=True)
class Endings:
    """Answers to one kind of outside prompts. `endless` are the prompts whose answer was cut off,
    each by its first `SHOWN_CHARS`.
    """

    kind: str
    num_cases: int
    endless: tuple[str, ...]

    @property
    def num_ended(self) -> int:
        """Answers that ended by themselves."""
        return self.num_cases - len(self.endless)


@dataclass(frozen=True, slots=True)
class StreamComparison:
    """One skill asked twice, whole and streamed: the number of equal answers, and of right ones in
    each form.
    """

    skill: str
    num_cases: int
    num_same: int
    num_right_whole: int
    num_right_streamed: int


@dataclass(frozen=True, slots=True)
class EvaluationBar:
    """A figure that must not be under `least`; None if no case applies."""

    name: str
    value: float | None
    least: float

    @property
    def holds(self) -> bool:
        return self.value is None or self.value >= self.least


def score(skill: str, verdicts: Sequence[ExampleVerdict], ended: Sequence[bool]) -> SkillScore:
    """Count the verdicts on one skill's answers."""
    tried = [verdict.valid_tool for verdict in verdicts if verdict.valid_tool is not None]
    asked = [verdict.right_tool for verdict in verdicts if verdict.right_tool is not None]
    return SkillScore(
        skill=skill,
        num_cases=len(verdicts),
        num_right=sum(verdict.ok for verdict in verdicts),
        num_tried=len(tried),
        num_valid=sum(tried),
        num_tool_cases=len(asked),
        num_right_tool=sum(asked),
        num_ended=sum(ended),
    )


def bars(scores: Sequence[SkillScore]) -> list[EvaluationBar]:
    """The bars. The mean is of the skills' shares."""
    tried = sum(one.num_tried for one in scores)
    usual = [one for one in scores if one.skill not in SKILL_BARS]
    asked = sum(one.num_tool_cases for one in usual)
    valid = sum(one.num_valid for one in scores)
    right_tool = sum(one.num_right_tool for one in usual)
    worst = min(scores, key=lambda one: one.right - _skill_bar(one))
    return [
        EvaluationBar("mean", sum(one.right for one in scores) / len(scores), MEAN_BAR),
        EvaluationBar(f"worst skill ({worst.skill})", worst.right, _skill_bar(worst)),
        EvaluationBar("valid tool calls", valid / tried if tried else None, VALID_CALLS_BAR),
        EvaluationBar("right tool", right_tool / asked if asked else None, RIGHT_TOOL_BAR),
    ]


def _skill_bar(one: SkillScore) -> float:
    return SKILL_BARS.get(one.skill, SKILL_BAR)


def skills_table(scores: Sequence[SkillScore]) -> str:
    lines = [
        "| skill | cases | right | valid calls | right tool | ends |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in scores:
        shares = (
            _share(one.num_right, one.num_cases),
            _share(one.num_valid, one.num_tried),
            _share(one.num_right_tool, one.num_tool_cases),
            _share(one.num_ended, one.num_cases),
        )
        lines.append(f"| {one.skill} | {one.num_cases} | {' | '.join(shares)} |")
    return "\n".join(lines)


def bars_table(held: Sequence[EvaluationBar]) -> str:
    lines = ["| bar | value | at least | holds |", "|---|---:|---:|---|"]
    for bar in held:
        value = "" if bar.value is None else f"{bar.value:.1%}"
        lines.append(f"| {bar.name} | {value} | {bar.least:.0%} | {'yes' if bar.holds else 'NO'} |")
    return "\n".join(lines)


def endings(kind: str, texts: Sequence[str], ended: Sequence[bool]) -> Endings:
    """Count the answers to one kind of prompts that end."""
    endless = [text for text, has_ended in zip(texts, ended, strict=True) if not has_ended]
    return Endings(kind, len(texts), tuple(text[:SHOWN_CHARS] for text in endless))


def ends_bar(kinds: Sequence[Endings]) -> EvaluationBar:
    num_cases = sum(one.num_cases for one in kinds)
    num_ended = sum(one.num_ended for one in kinds)
    return EvaluationBar(
        f"ends by itself ({num_ended} of {num_cases})", num_ended / num_cases, ENDS_BAR
    )


def endings_table(kinds: Sequence[Endings]) -> str:
    rows = [
        f"| {one.kind} | {one.num_cases} | {_share(one.num_ended, one.num_cases)} |"
        for one in kinds
    ]
    return "\n".join(["| prompts | cases | ends |", "|---|---:|---:|", *rows])


def same_bar(skills: Sequence[StreamComparison]) -> EvaluationBar:
    """The share of equal answers, which must be 1."""
    num_cases = sum(one.num_cases for one in skills)
    num_same = sum(one.num_same for one in skills)
    return EvaluationBar(
        f"same in both forms ({num_same} of {num_cases})", num_same / num_cases, SAME_BAR
    )


def comparisons_table(skills: Sequence[StreamComparison]) -> str:
    rows = []
    for one in skills:
        counts = (one.num_same, one.num_right_whole, one.num_right_streamed)
        shares = " | ".join(_share(count, one.num_cases) for count in counts)
        rows.append(f"| {one.skill} | {one.num_cases} | {shares} |")
    head = ["| skill | cases | same | right whole | right streamed |", "|---|---:|---:|---:|---:|"]
    return "\n".join([*head, *rows])


def as_json(held: Sequence[EvaluationBar]) -> dict[str, Any]:
    return {"bars": [asdict(bar) | {"holds": bar.holds} for bar in held]}


def skills_as_json(scores: Sequence[SkillScore]) -> dict[str, Any]:
    return {"skills": [asdict(one) | {"right": one.right} for one in scores]}


def comparisons_as_json(skills: Sequence[StreamComparison]) -> dict[str, Any]:
    return {"both_forms": [asdict(one) for one in skills]}


def endings_as_json(kinds: Sequence[Endings]) -> dict[str, Any]:
    return {"outside": [asdict(one) | {"num_ended": one.num_ended} for one in kinds]}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""
