"""Where a tokenizer may be given a text word by word, or even piece by piece.

Owns the rule for when the ids of a text are exactly those of its words, one after the other, when
it is cut in front of every space that follows a printed character. It holds if

- no added token may lie across such a place;
- the normalizer treats both sides by themselves: a space composes with nothing;
- the pre-tokenizer always cuts there. Up to the stage that does, stages either cut there too or
  leave the place as it is; those behind it are given the same pieces in any case.

And where one expression alone decides on the pieces, they are found here for text in ASCII. Models
take pieces one by one. Whatever is not known is not cut. For tokenizers of which `segment_rule.py`
says that stretches are encoded by themselves. Must not know texts.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from gateway.prompt.ascii_pieces import Pieces
from gateway.prompt.segment_rule import Stage, stages_of
from gateway.prompt.split_pattern import SPACE, Pattern, UnknownPattern, read_pattern

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` splits by."""
_COMPOSING: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""They leave ASCII as it is, no printed character empty, and no white space at the end of one."""
_KEEPING: Final = _COMPOSING | {"Lowercase"}
_DROPPING: Final = frozenset({"BertNormalizer", "StripAccents"})
_WHITE_REMOVERS: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
"""They cut at white space, whatever stands beside it."""
_BY_CHARACTER: Final = frozenset({"Digits", "Punctuation"})
_ISOLATING: Final = ("Isolated", "Removed")


class WordBreaks(NamedTuple):
    """A text may be cut in front of a space that follows a printed character; text in ASCII into
    `pieces`, where those are known.
    """

    pieces: Pieces | None


def word_breaks(tokenizer: Tokenizer) -> WordBreaks | None:
    """Where texts may be cut; None for a tokenizer of which that is not known."""
    tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if (normalizer := tokenizer.normalizer) is not None:
        # They may be looked for in that form.
        tokens += map(normalizer.normalize_str, tokens.copy())
    # Bert's puts spaces around some characters: a token of spaces may lie across a cut as well.
    drops = any(stage.type in _DROPPING for stage in stages_of(tokenizer.normalizer))
    insides = tokens if drops else map(str.lstrip, tokens)
    if any(character.isspace() for inside in insides for character in inside):
        return None
    stages = stages_of(tokenizer.pre_tokenizer)
    at = next((at for at, stage in enumerate(stages) if not _leaves_alone(stage)), len(stages))
    if not (at < len(stages) and _cuts(stages[at])):
        return None
    known = _KEEPING | _DROPPING if stages[at].type in _WHITE_REMOVERS else _KEEPING
    if not all(_is_local(stage, known) for stage in stages_of(tokenizer.normalizer)):
        return None
    pattern = _pieces(tokenizer, stages)
    return WordBreaks(None if pattern is None else Pieces(tokenizer, pattern))


def is_printed(character: str) -> bool:
    """Whether a text may be cut between `character` and a space behind it."""
    return character.isprintable() and character != SPACE


def _is_local(normalizer: Stage, known: frozenset[str]) -> bool:
    is_known = normalizer.type in known
    return is_known or (normalizer.type == "Strip" and not normalizer.strip_left)


def _leaves_alone(stage: Stage) -> bool:
    """Whether it may cut in front of the space or not, but changes nothing on either side."""
    if stage.type in _BY_CHARACTER:
        return stage.behavior in ("", *_ISOLATING)
    pattern = _pattern_of(stage)
    return pattern is not None and not pattern.joins_space and not pattern.takes_white


def _cuts(stage: Stage) -> bool:
    """Whether it always cuts in front of the space, and both sides are treated by themselves."""
    if stage.type in _WHITE_REMOVERS:
        return True
    if stage.type == "Metaspace":
        return stage.split and stage.prepend_scheme != "first"
    pattern = _pattern_of(stage)
    return pattern is not None and not pattern.joins_space and pattern.takes_white


def _pieces(tokenizer: Tokenizer, stages: list[Stage]) -> re.Pattern[str] | None:
    """What finds the pieces, if it is but one expression, over the text as it stands, and bytes
    are spelt as `ByteLevel` does.
    """
    if any(stage.type not in _COMPOSING for stage in stages_of(tokenizer.normalizer)):
        return None
    first, *others = stages
    if any(stage.type != "ByteLevel" or stage.use_regex for stage in others):
        return None
    if stages[-1].type != "ByteLevel" or any(stage.add_prefix_space for stage in stages):
        return None
    if first.behavior == "Removed" and not first.invert:
        return None
    pattern = _pattern_of(first)
    return None if pattern is None else pattern.ascii


def _pattern_of(stage: Stage) -> Pattern | None:
    """The expression that a stage cuts by, if it cuts by one that is known."""
    source = None
    if stage.type == "ByteLevel" and stage.use_regex:
        source = _GPT2
    elif stage.type == "Split" and stage.behavior in _ISOLATING:
        source = stage.pattern.get("Regex")
    return None if source is None else _read(source)


@lru_cache(maxsize=4)
def _read(source: str) -> Pattern | None:
    """The longest take 50 ms."""
    try:
        return read_pattern(source)
    except UnknownPattern:
        return None
