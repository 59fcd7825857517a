"""Words of an open vocabulary, and their forms.

Reads words/open_verbs.txt and words/open_nouns.txt. Half of the words are invented, so that nothing
can be known about a word but its letters. For training only. Must not know tools.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

from training.data.entities import code
from training.data.pools import is_mine
from training.data.world import World

_WORDS: Final = Path(__file__).parent / "words"
_INVENTED: Final = 0.5
_TWO_WORDS: Final = 0.1
_VOWELS: Final = "aeiou"
_MIN_LETTERS: Final = 3
_SHORT: Final = 4


def draw_verb(world: World) -> str:
    return _word(world) if world.chance(_INVENTED) else world.pick(_list("open_verbs"))


def draw_noun(world: World) -> str:
    """A thing of one word, rarely of two."""
    if world.chance(_TWO_WORDS):
        return f"{_noun(world)} {_noun(world)}"
    return _noun(world)


def draw_label(world: World) -> str:
    """A name of something, as people write names: what a parameter of text may hold."""
    chance = world.random()
    if chance < 0.22:
        return _noun(world)
    if chance < 0.4:
        return world.name() if world.chance(0.5) else world.place()
    if chance < 0.55:
        return f"{_cap(_noun(world))} {_cap(_noun(world))}"
    if chance < 0.7:
        return f"{world.quality()} {_noun(world)}"
    if chance < 0.76:
        return f"{world.between(1, 99)} {_cap(_noun(world))} {_cap(_noun(world))}"
    return (
        _marked(world) if chance < 0.96 else f"{_cap(_noun(world))} {_noun(world)} {_noun(world)}"
    )


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def past(verb: str) -> str:
    """The participle, formed as with regular verbs."""
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in _VOWELS:
        return f"{verb[:-1]}ied"
    return f"{_doubled(verb)}ed"


def gerund(verb: str) -> str:
    if verb.endswith("e") and not verb.endswith(("ee", "ye", "oe")):
        return f"{verb[:-1]}ing"
    return f"{_doubled(verb)}ing"


def _doubled(verb: str) -> str:
    """`map` becomes `mapp`: a short word of consonant, vowel, consonant."""
    is_short = _MIN_LETTERS <= len(verb) <= _SHORT
    if is_short and verb[-1] not in f"{_VOWELS}wxy" and verb[-2] in _VOWELS:
        return verb if verb[-3] in _VOWELS else verb + verb[-1]
    return verb


def _noun(world: World) -> str:
    chance = world.random()
    if chance < _INVENTED:
        return _word(world)
    return world.pick(_list("open_nouns")) if chance < 0.8 else world.of("nouns")


def _word(world: World) -> str:
    while len(word := world.pseudo(3, 10)) < _MIN_LETTERS:
        pass
    return word


def _marked(world: World) -> str:
    """A mark with digits: `K-12`, `4C`, `v2.8.1`, `swift-7`."""
    letter = world.pick("ABCDEFGHJKLMNPQRSTUVWXYZ")
    number = world.between(1, world.pick((9, 99, 999)))
    return world.pick(
        (
            f"{letter}-{number}",
            f"{letter}{number}",
            f"{number}{letter}",
            f"v{number}.{world.between(0, 40)}.{world.between(0, 9)}",
            f"{_noun(world)}-{number}",
            f"{_cap(_noun(world))}-{number}",
            f"{_noun(world)[:4]}-{_noun(world)}",
            code(world),
        )
    )


def _cap(word: str) -> str:
    return word[:1].upper() + word[1:]


@lru_cache
def _list(name: str) -> tuple[str, ...]:
    words = (_WORDS / f"{name}.txt").read_text(encoding="utf-8").split()
    return tuple(word for word in dict.fromkeys(words) if is_mine(word, "train"))
