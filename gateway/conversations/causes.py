"""Causes: what made a prompt differ from the previous prompt of its conversation. Owns the kinds of
causes and the rules that recognise them. It gets a few lines around the first difference and does
not keep them. Must not know tokens or conversations.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

Kind = Literal[
    "time stamp",
    "counter",
    "changing id",
    "billing line",
    "reordered tools",
    "changed tools",
    "edited summary",
    "dropped history",
    "rolling mark",
    "edited result",
    "edited message",
    "changed instructions",
    "template",
]

_MONTHS: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAYS: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
TIMES: Final = re.compile(
    r"(?ix)"
    r"\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T\s,]+\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?)?"
    r"(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
    rf"| (?:\b{_DAYS},?\s+)?\b{_MONTHS}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?"
    r"(?:,?\s+(?:at\s+)?\d\d?:\d\d(?::\d\d)?)?"
    rf"| (?:\b{_DAYS},?\s+)?\b\d{{1,2}}(?:st|nd|rd|th|\.)?\s+{_MONTHS}\.?(?:,?\s+\d{{4}})?"
    r"(?:,?\s+\d\d?:\d\d(?::\d\d)?)?"
    r"| \b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"| \b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[ap]\.?m\.?)?(?![\d:])"
    rf"| \b{_DAYS}\b"
    r"| \b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b"
    r"| \b(?:am|pm|utc|gmt|cet|cest|est|pst)\b"
)
_IDS: Final = re.compile(
    r"(?ix)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"| \b(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{5,}\b"
)
_NUMBERS: Final = re.compile(r"\d+(?:[.,_]\d+)*")
_BILLING: Final = re.compile(
    r"(?i)billing|attribution|\bcch=|cc_version|x-anthropic-|\b(?:cost|spent|spend|credits?|"
    r"balance|budget|invoice|usd|eur)\b|[$€]\s?\d"
)
_SUMMARY: Final = re.compile(
    r"(?i)summar|compact(?:ed|ion)|condensed|recap|conversation so far|earlier (?:conversation|"
    r"messages|turns)|previous (?:conversation|messages)|history of (?:the|this) conversation|"
    r"context so far|handoff"
)
_MARK: Final = re.compile(
    r"(?i)cache[_-]?control|ephemeral|<system-reminder>|</system-reminder>|\[latest\]|"
    r"<latest>|\[current\]|\bcache[_ -]?(?:mark|point|breakpoint)\b|\[cache\]"
)
MIN_MOVED: Final = 4


def is_summary(text: str) -> bool:
    """Whether a message says that it is a summary of earlier messages."""
    return _SUMMARY.search(text[:2000]) is not None


def cause_of_line(before: str, after: str) -> Kind | None:
    """What changed in the first line in which the texts `before` and `after` differ; None if the
    line does not say.
    """
    one, other = _first_lines(before, after)
    if _BILLING.search(one) and _BILLING.search(other):
        return "billing line"
    if _masked_equal(one, other, lambda text: TIMES.sub("#", text), TIMES):
        return "time stamp"
    if _masked_equal(one, other, lambda text: _NUMBERS.sub("#", TIMES.sub("#", text)), _NUMBERS):
        return "counter"
    if _masked_equal(
        one,
        other,
        lambda text: _NUMBERS.sub("#", _IDS.sub("#", TIMES.sub("#", text))),
        _IDS,
    ):
        return "changing id"
    return None


def is_mark(before: str, after: str, later: str) -> bool:
    """Whether a text that was in `before` is missing in `after` and appears in the text `later`, or
    has the form of a mark.
    """
    one, other = _changed_parts(before, after)
    if not other.strip() and _MARK.search(one):
        return True
    if not one.strip() and _MARK.search(other):
        return True
    moved = one.strip()
    return not other.strip() and len(moved) >= MIN_MOVED and moved in later


def changed_chars(before: str, after: str) -> int:
    """The length of what changed, in characters of the longer text."""
    one, other = _changed_parts(before, after)
    return max(len(one), len(other))


def _num_equal(one: str, other: str) -> int:
    """How many characters the texts share at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _first_lines(before: str, after: str) -> tuple[str, str]:
    """The line of each text that holds the first difference."""
    at = _num_equal(before, after)
    start = before.rfind("\n", 0, at) + 1
    return before[start:].partition("\n")[0], after[start:].partition("\n")[0]


def _masked_equal(
    one: str, other: str, mask: Callable[[str], str], needed: "re.Pattern[str]"
) -> bool:
    """Whether the lines are equal but for what `mask` hides. A line may be cut at its end."""
    if needed.search(one) is None or needed.search(other) is None:
        return False
    first, second = mask(one).strip(), mask(other).strip()
    return first == second


def _changed_parts(before: str, after: str) -> tuple[str, str]:
    """The parts of `before` and `after` between their common beginning and the place where they
    agree again.
    """
    at = _num_equal(before, after)
    one, other = before[at:], after[at:]
    probe = 24
    if other and (found := one.find(other[:probe])) > 0:
        return one[:found], ""
    if one and (found := other.find(one[:probe])) > 0:
        return "", other[:found]
    # A stretch in each, up to the next line that both have.
    lines = other.split("\n")[1:]
    for line in lines[:8]:
        if len(line) >= MIN_MOVED and (found := one.find("\n" + line)) >= 0:
            return one[:found], other[: other.find("\n" + line)]
    return one, other
