"""The rule by which an answer is right, in units of its dtype's noise.

Owns numbers only. Must not know networks or devices.

A token's noise is the difference of plain torch in the weights' dtype from float32, for the same
prefix, as root mean square over the vocabulary. Ours may be `RULE` times as large, as in
`tests/gpu_parity`: another order of additions gives other noise of the same size. It bounds how far
another token may lead ours in the float32 scores:

- no lead is larger than `WIDEST` of that noise allows; where the reference is surer than that, our
  token is the reference's own;
- the leads of an answer, and those of all answers, add up to no more than such noise makes of the
  scores' gaps. This is the sharper test: k times the noise changes k times as many tokens, by k
  times as much.

Where x is rounded to 8 bits the noise is large, 15 % of the logits' spread for Qwen3-8B, though the
float32 scores round as the kernels do: a difference of 2^-9 before a rounding to steps of 2^-4 is
one of 2^-6.5 behind it, so that after a few layers any order of additions gives other numbers. Then
half of the next tokens are within the noise, and only their exact chances tell right from wrong.

In a mixture rounding also decides between two nearly equal experts, and a row that goes through the
other one has more noise than its neighbours. Which rows do differs between ours and plain torch, so
there `WIDEST` is in units of the answer's largest noise.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import torch
from torch import Tensor

RULE: Final = 1.5

WIDEST: Final = 4.0
"""Standard deviations: one token in 30,000 exceeds it by chance, and a run checks 900."""

MAX_BLIND: Final = 0.5
"""A check has no power if the bound exceeds this share of the leads of a blind choice among the
best tokens.
"""

_ERRORS: Final = (-8.0, 10.0, 181)
"""Where the largest of some scores with noise may lie, in units of the noise above the best score
without it: from, to, and how many places are looked at. Chances add up to 1 within 1e-14.
"""

_SIGMA: Final = math.sqrt(2) * RULE
"""Standard deviation of the difference of the errors of two scores, each of which is 1 in plain
torch.
"""


class AnswerVerdict(StrEnum):
    """The verdict of a check on all answers."""

    RIGHT = "right"
    WRONG = "wrong"
    UNSAID = "nothing said"

    @classmethod
    def of(cls, wrong: Sequence[str], doubted: str | None) -> "AnswerVerdict":
        """By the errors that were found, and the doubt in what was not."""
        if wrong:
            return cls.WRONG
        return cls.RIGHT if doubted is None else cls.UNSAID

    @property
    def exit_status(self) -> int:
        """The exit status of the command; 2 is for a wrong command line."""
        return {AnswerVerdict.RIGHT: 0, AnswerVerdict.WRONG: 1, AnswerVerdict.UNSAID: 3}[self]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer with n checked tokens, in units of each token's noise. `leads` float32 [n] are the
    reference's best score minus ours, `gaps` [n, rivals] the best score minus the next ones.
    `noise` is that unit over the spread of the logits. `largest` float32 [n]: the unit over the
    largest that a token of this answer may have; None: its own.
    """

    prompt_tokens: int
    temperature: float
    noise: float
    leads: Tensor
    gaps: Tensor
    largest: Tensor | None = None


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The verdict on one answer, in units of its noise. `lead` is the largest lead and `leads`
    their sum; `expected` and `variance` are of the sum at the largest allowed noise; `blind` is the
    sum if each token were any of the rivals. `decided` tokens have no rival within the largest
    lead.
    """

    prompt_tokens: int
    num_tokens: int
    temperature: float
    noise: float
    decided: int
    lead: float
    leads: float
    expected: float
    variance: float
    blind: float

    @property
    def bound(self) -> float:
        """The bound on the sum."""
        return _bound(self.expected, self.variance)

    @property
    def is_right(self) -> bool:
        """Whether every token is right, and all of them together. NaN is not."""
        return self.lead <= WIDEST * _SIGMA and self.leads <= self.bound

    def as_json(self) -> dict[str, Any]:
        """All fields and the judgement."""
        return {**asdict(self), "bound": self.bound, "is_right": self.is_right}


def _bound(expected: float, variance: float) -> float:
    """A quantile of a sum of leads. Most tokens have none, so a few large ones make it."""
    return expected + WIDEST * math.sqrt(variance) + WIDEST * _SIGMA


def judge(evidence: Evidence) -> JudgedAnswer:
    """Judge one answer by its evidence."""
    expected, variance = _by_chance(evidence.gaps.double())
    leads = evidence.leads if evidence.largest is None else evidence.leads * evidence.largest
    return JudgedAnswer(
        prompt_tokens=evidence.prompt_tokens,
        num_tokens=len(evidence.leads),
        temperature=evidence.temperature,
        noise=evidence.noise,
        decided=int((evidence.gaps[:, 0] > WIDEST * _SIGMA).sum()),
        lead=float(leads.max()),
        leads=float(evidence.leads.sum()),
        expected=float(expected.sum()),
        variance=float(variance.sum()),
        blind=float(evidence.gaps.mean(dim=1).sum()),
    )


def _by_chance(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [n] of each token's lead if every score has its own noise, normal and
    `RULE` wide: over all values of the largest noisy score, the chance that it is this one's and
    that all others are smaller.
    """
    behind = torch.cat((torch.zeros_like(gaps[:, :1]), gaps), dim=1)
    start, end, number = _ERRORS
    largest = torch.linspace(start, end, number, dtype=gaps.dtype)
    errors = largest + behind.unsqueeze(2) / RULE
    smaller = torch.special.log_ndtr(errors)
    own = -0.5 * errors.square() - 0.5 * math.log(2 * math.pi)
    chances = (own + smaller.sum(dim=1, keepdim=True) - smaller).exp().sum(dim=2)
    chances *= (end - start) / (number - 1)
    mean = (chances * behind).sum(dim=1)
    return mean, (chances * behind.square()).sum(dim=1) - mean.square()


def failures(checked: Sequence[JudgedAnswer]) -> list[str]:
    """The errors as lines; empty if none was found."""
    lines = [f"wrong tokens: {one}" for one in checked if not one.is_right]
    leads, bound, _ = _together(checked)
    if not lines and not leads <= bound:
        lines.append(f"all tokens together are {leads:.1f} off, and {bound:.1f} may be")
    return lines


def doubt(checked: Sequence[JudgedAnswer]) -> str | None:
    """Why tokens without an error are not shown to be right either; None if they are."""
    _, bound, blind = _together(checked)
    if bound < MAX_BLIND * blind:
        return None
    return f"nothing is said: noise may lead {bound:.1f} away, blind choice {blind:.1f}"


def _together(checked: Sequence[JudgedAnswer]) -> tuple[float, float, float]:
    """The leads, their bound, and the leads of a blind choice."""
    leads, expected, variance, blind = (
        sum(getattr(one, key) for one in checked)
        for key in ("leads", "expected", "variance", "blind")
    )
    return leads, _bound(expected, variance), blind


def summary(checked: Sequence[JudgedAnswer]) -> str:
    """The power of the check in a line."""
    tokens, decided, leads, expected, blind = (
        sum(getattr(one, key) for one in checked)
        for key in ("num_tokens", "decided", "leads", "expected", "blind")
    )
    noise = max((one.noise for one in checked), default=0.0)
    return (
        f"{len(checked)} answers, {tokens} tokens against plain torch in float32, which is sure of "
        f"{decided}: {leads:.1f} away, where {RULE} x the noise of plain torch makes {expected:.1f}"
        f" and blind choice {blind:.1f} (noise up to {100 * noise:.1f} % of the logits' spread)"
    )
