"""Judges whether a version answers like the one before, and as fast.

Owns the fixed questions and the comparison. Asks no engine.

Two versions may add the same numbers in another order. So near a tie they may choose different
tokens, and everything after such a token differs. A difference counts if the old version's token
led by more than `NEAR_TIE`. An engine that does not report the lead must agree in the first
`MUST_AGREE` tokens, or words of text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from protocol.control_messages import ProbedAnswer, ProbeQuestion
from workers.starts import SLOWER

NEAR_TIE: Final = 0.5
"""Two tokens whose log probabilities differ by no more than this are a tie, which either version
may decide.
"""
MUST_AGREE: Final = 4

_ANSWER_TOKENS: Final = 16
_SPEED_TOKENS: Final = 48
_TEXTS: Final = (
    "The capital of France is",
    "Count from one to twenty: one, two, three, four,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Write one sentence about the sea.",
)
_NUM_PLAIN: Final = 4
_PLAIN_IDS: Final = 24
"""Token ids that every vocabulary has: the questions to an engine without a tokenizer."""


def questions(encode: Callable[[str], Sequence[int]] | None) -> tuple[ProbeQuestion, ...]:
    """The questions; the last one is long enough to measure speed. Without a tokenizer (`encode`)
    their ids are arbitrary.
    """
    asked: list[ProbeQuestion] = []
    for number, text in enumerate(_TEXTS):
        ids = (
            [1 + (7 * number + at) % _PLAIN_IDS for at in range(_NUM_PLAIN + number)]
            if encode is None
            else encode(text)
        )
        is_last = number == len(_TEXTS) - 1
        tokens = _SPEED_TOKENS if is_last else _ANSWER_TOKENS
        asked.append(ProbeQuestion(tokens, ids=tuple(ids), text=text))
    return tuple(asked)


def wrong_answers(old: Sequence[ProbedAnswer], new: Sequence[ProbedAnswer]) -> Iterator[str]:
    """One line for each question that the new version answers differently."""
    for number, (before, now) in enumerate(zip(old, new, strict=True), 1):
        if (what := _difference(before, now)) is not None:
            yield f"question {number}: {what}"


def speed_of(answers: Sequence[ProbedAnswer]) -> float:
    """Tokens per second of the fastest answer; 0 if no speed is known."""
    return max((answer.tokens_per_s for answer in answers), default=0.0)


def too_slow(old: float, new: float) -> str | None:
    """The complaint if `new` tokens per second are too few after `old`; None if they are not, or if
    one of them is 0, which is unknown: an engine need not count its tokens.
    """
    if not old or not new or new >= SLOWER * old:
        return None
    return f"answers at {new:.1f} tokens/s, {1 - new / old:.0%} slower than the {old:.1f} before"


def _difference(before: ProbedAnswer, now: ProbedAnswer) -> str | None:
    if not before.tokens:
        return _other_text(before.text, now.text)
    if len(now.tokens) != len(before.tokens):
        return f"{len(now.tokens)} tokens instead of {len(before.tokens)}"
    pairs = enumerate(zip(before.tokens, now.tokens, strict=True))
    at = next((at for at, (was, is_) in pairs if was != is_), None)
    if at is None:
        return None
    what = f"token {at + 1} is {now.tokens[at]} instead of {before.tokens[at]}"
    if before.leads:
        lead = before.leads[at]
        return f"{what}, which led by {lead:.2f}" if lead > NEAR_TIE else None
    return what if at < MUST_AGREE else None


def _other_text(before: str, now: str) -> str | None:
    was, is_ = before.split()[:MUST_AGREE], now.split()[:MUST_AGREE]
    return None if was == is_ else f"it begins with {' '.join(is_)!r} instead of {' '.join(was)!r}"
