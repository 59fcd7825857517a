"""The words of the cases, split into training and evaluation.

Reads words/*.txt and assigns each word to one side. Must not draw at random.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from training.data.example import Split

EVAL_SHARE: Final = 8
"""One word in this many is kept for evaluation."""

KINDS: Final = ("names", "places", "nouns", "adjectives", "foods", "animals", "jobs")

SIDES: Final[tuple[Split, ...]] = ("train", "eval")

COLORS: Final = (
    "red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "purple", "orange",
    "silver", "golden", "violet",
)  # fmt: skip
WEEKDAYS: Final = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

_WORDS: Final = Path(__file__).parent / "words"


def is_mine(key: str, split: Split) -> bool:
    """Whether `key` (a word, a question) is on the side `split`. The same in every process. The
    family's words are on neither: only its own cases have them.
    """
    word = key.lower()
    is_held_out = crc32(word.encode()) % EVAL_SHARE == 0
    return is_held_out if split == "eval" else not is_held_out and word not in family_words()


@lru_cache
def family_lines() -> tuple[str, ...]:
    """The lines of words/family.txt without its comment."""
    text = (_WORDS / "family.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


@lru_cache
def family_words() -> frozenset[str]:
    """The words of names and parameters of the held-out tools, with and without a last "s"."""
    words: set[str] = set()
    for line in family_lines():
        head = line[1:].partition("]")[0] if line.startswith("[") else line.partition(":")[0]
        if not line.startswith("ask:"):
            words |= {part for part in re.split("[^a-z]", head) if part}
    return frozenset(words | {word.removesuffix("s") for word in words})


@lru_cache
def pool(kind: str, split: Split) -> tuple[str, ...]:
    """The words of words/`kind`.txt on the side `split`. Raises `FileNotFoundError` without one."""
    words = (_WORDS / f"{kind}.txt").read_text(encoding="utf-8").split()
    return tuple(word for word in dict.fromkeys(words) if is_mine(word, split))


@lru_cache
def pieces() -> tuple[str, ...]:
    """Beginnings and ends of words of both sides, to be joined into words that no list holds.

    A tokenizer has whole words among its entries. An entry that never occurs in training can be
    neither copied nor spelled, whatever the network has learnt about copying and spelling.
    """
    words = [word.lower() for kind in KINDS for side in SIDES for word in pool(kind, side)]
    words += [verb for group in verb_groups() for verb in group]
    ends = [word[at:] for word in words for at in (1, 2, 3) if len(word) - at >= 2]
    starts = [word[:at] for word in words for at in (2, 3, 4, 5) if at < len(word)]
    return tuple(dict.fromkeys([*words, *ends, *starts]))


@lru_cache
def verb_groups() -> tuple[tuple[str, ...], ...]:
    """Verbs that name tools, grouped by meaning; the first stands for all."""
    lines = (_WORDS / "verbs.txt").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(line.split()) for line in lines)


@lru_cache
def verbs(split: Split) -> tuple[tuple[str, ...], ...]:
    """The groups that name tools of `split`: single verbs are split, but groups of synonyms are
    language, which both sides share.
    """
    groups = verb_groups()
    return tuple(group for group in groups if len(group) > 1 or is_mine(group[0], split))
