"""A random world: the one source of chance and of entities for all skills.

Draws words, names and pseudo-words of one side. Must not know skills. Everything follows from the
seed, in every process.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from training.data.example import Split
from training.data.pools import is_mine, pieces, pool

T = TypeVar("T")

_ONSETS: Final = (
    "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z",
    "bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "kl", "kr", "pl", "pr", "qu",
    "sh", "sk", "sl", "sm", "sn", "sp", "st", "str", "sw", "th", "tr", "tw", "y", "", "",
)  # fmt: skip
_VOWELS: Final = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ee", "oa", "oo", "ou")
_CODAS: Final = (
    "", "", "", "", "", "b", "ck", "d", "f", "g", "k", "l", "ll", "m", "n", "nd", "ng", "nk",
    "nt", "p", "r", "rk", "rt", "s", "sh", "ss", "st", "t", "th", "v", "x", "z", "ld", "mp",
)  # fmt: skip
_PSEUDO_NAME: Final = 0.35
_PSEUDO_WORD: Final = 0.3
_JOINED: Final = 0.6


class World:
    """Draws from the side `split`; `seed` may be any text."""

    def __init__(self, seed: str, split: Split) -> None:
        self.split: Split = split
        self.rng = Random(seed)  # noqa: S311 - reproducible data, no secrets
        self.random = self.rng.random

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self.random() * (high - low + 1))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The same items in another order."""
        mixed = list(items)
        self.rng.shuffle(mixed)
        return mixed

    def several(self, draw: Callable[[], str], count: int) -> list[str]:
        """`count` different draws; case is ignored."""
        found: dict[str, str] = {}
        while len(found) < count:
            one = draw()
            found.setdefault(one.lower(), one)
        return list(found.values())

    def of(self, kind: str) -> str:
        """A word of words/`kind`.txt."""
        return self.pick(pool(kind, self.split))

    def pseudo(self, low: int = 3, high: int = 9) -> str:
        """A word of `low` to `high` letters that no list holds."""
        pick = self.pick
        if self.split == "train" and self.random() < _JOINED:
            return self.joined(high)
        while True:
            syllables = 1 + (self.random() < 0.75) + (self.random() < 0.2)
            word = "".join(pick(_ONSETS) + pick(_VOWELS) + pick(_CODAS) for _ in range(syllables))
            if low <= len(word) <= high and is_mine(word, self.split):
                return word

    def joined(self, high: int) -> str:
        """Two pieces of words joined, at most `high` letters: every piece occurs in training."""
        while True:
            word = self.pick(pieces()) + self.pick(pieces())
            if len(word) <= max(high, 6) and is_mine(word, self.split):
                return word

    def blend(self) -> str:
        """The beginning of one word and the end of another: no word, but spelled like one."""
        while True:
            one, other = (self.pick(pool("nouns", "train")) for _ in range(2))
            word = one[: self.between(1, 4)] + other[-self.between(2, 5) :]
            if is_mine(word, self.split):
                return word

    def name(self) -> str:
        if self.chance(_PSEUDO_NAME):
            return self.pseudo().capitalize()
        return self.of("names")

    def place(self) -> str:
        if self.chance(_PSEUDO_NAME):
            return self.pseudo().capitalize()
        return self.of("places")

    def noun(self) -> str:
        return self.pseudo() if self.chance(_PSEUDO_WORD) else self.of("nouns")

    def quality(self) -> str:
        """Words that may precede a thing; they do not tell where the thing's name ends."""
        return self.pseudo() if self.chance(_PSEUDO_WORD) else self.of("adjectives")

    def word(self) -> str:
        """Any word in lower case."""
        chance = self.random()
        if chance < _PSEUDO_WORD:
            return self.pseudo()
        if chance < 0.6:
            return self.of("nouns")
        return self.of(("adjectives", "foods", "animals", "jobs")[int(self.random() * 4)])

    def short_word(self, low: int = 3, high: int = 7) -> str:
        """A word of `low` to `high` letters."""
        while True:
            chance = self.random()
            word = self.blend() if chance < 0.3 else self.word()
            if chance > 0.7:
                word = self.pseudo(low, high)
            if low <= len(word) <= high:
                return word

    def mine(self, key: str) -> bool:
        """Whether a question belongs to this side."""
        return is_mine(key, self.split)

    def new(self, draw: Callable[[], T], key: Callable[[T], str]) -> T:
        """Draw until the question that `key` names belongs to this side."""
        while True:
            drawn = draw()
            if is_mine(key(drawn), self.split):
                return drawn
