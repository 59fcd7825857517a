"""The regular expressions by which well-known tokenizers split text.

Owns the table of expressions that were checked against the tokenizers library. All of them allow
two things, which `tests/gateway/prompt/test_split_patterns.py` verifies for every entry:

- Text may be cut in front of every space that follows a printed character. No match takes a space
  right after a printed character, look-aheads treat a space like the end of the text, and no
  expression looks behind.
- In ASCII text, Python's `re` finds the same pieces, and a piece by itself is one piece again.

A tokenizer with any other expression is given whole segments. Must not know prompts or caches.
"""

import re
from functools import lru_cache
from typing import Final

from tokenizers import Tokenizer

from gateway.prompt.segment_rule import Stage, stages_of

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""`ByteLevel` with `use_regex` splits by it as well."""
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression of Llama 3 and GLM-4."""
_CL100K: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN2: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression of Qwen 2, 2.5 and 3."""
_QWEN3_5: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen 3.5 and later: marks belong to their letters."""
_O200K: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression of GPT-4o and gpt-oss."""
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression of Mistral's Tekken."""
_DEEPSEEK: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3: Final = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK)
_DEEPSEEK_V3_AT_ONCE: Final = (
    r"\p{N}{1,3}|[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}\p{N}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{N}])|\s+"
)
"""The three stages as one expression, for ASCII: the first takes digits out before the others."""
_HERMA_TINY: Final = (
    r"'(?:WORDS)(?!\p{L})| (?:WORDS)(?!\p{L})| ?\p{L}(?!\p{L})|\p{Lu}?[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|\p{Lu}+(?!\p{Ll})|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s"
)
"""The expression of the built-in model, with any lists of frequent words."""
_WORDS: Final = re.compile(r"\(\?:(?:[a-z|]|\(\?:|\)\??)+\)(?=\(\?!\\p\{L\}\))")

TABLE: Final[dict[tuple[str, ...], str]] = {
    **{(one,): one for one in (_GPT2, _LLAMA3, _CL100K, _QWEN2, _QWEN3_5, _O200K, _TEKKEN)},
    (_HERMA_TINY,): _HERMA_TINY,
    (_DEEPSEEK,): _DEEPSEEK,
    _DEEPSEEK_V3: _DEEPSEEK_V3_AT_ONCE,
}
"""The expressions of a tokenizer's stages, in their order -> one expression for ASCII text."""

_IN_ASCII: Final = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "Lt": "",
    "Lm": "",
    "Lo": "",
    "M": "",
    "N": "0-9",
    "P": r"!-#%-*,-/:;?@\[-\]_{}",
    "S": r"$+<->\^`|~",
}
_PROPERTY: Final = re.compile(r"\\p\{(\w+)\}")
_CLASS_OR_PROPERTY: Final = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\p\{\w+\}")
_UNICODE_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""The normal forms of Unicode. They leave ASCII as it is and compose a space with nothing."""


def ascii_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """The expression that finds the pieces of ASCII text, between added tokens; None for a
    tokenizer whose text may not be cut into words and pieces.
    """
    if any(stage.type not in _UNICODE_FORMS for stage in stages_of(tokenizer.normalizer)):
        return None
    if _may_cross_a_cut(tokenizer):
        return None
    stages = stages_of(tokenizer.pre_tokenizer)
    if not stages or stages[-1].type != "ByteLevel":
        return None
    if any(stage.add_prefix_space for stage in stages):
        return None
    if not stages[-1].use_regex:
        del stages[-1]
    return in_ascii(tuple(map(_source, stages)))


@lru_cache(maxsize=16)
def in_ascii(sources: tuple[str, ...]) -> re.Pattern[str] | None:
    """The expression of these stages in Python's syntax, with the same matches in ASCII text; None
    for stages that are not in the table.
    """
    found = TABLE.get(tuple(_WORDS.sub("(?:WORDS)", source) for source in sources))
    if found is None:
        return None
    for words in _WORDS.findall(sources[0]):
        found = found.replace("(?:WORDS)", words, 1)
    return re.compile(_CLASS_OR_PROPERTY.sub(_spelled, found), re.ASCII)


def _may_cross_a_cut(tokenizer: Tokenizer) -> bool:
    """Whether an added token has white space inside, as it is written or as it is looked for."""
    texts = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if (normalizer := tokenizer.normalizer) is not None:
        texts += map(normalizer.normalize_str, texts.copy())
    return any(character.isspace() for text in texts for character in text.lstrip())


def _source(stage: Stage) -> str:
    """The expression that a stage splits by; empty for stages that are not known."""
    if stage.type == "ByteLevel" and stage.use_regex:
        return _GPT2
    is_isolating = stage.behavior == "Isolated" or (stage.behavior == "Removed" and stage.invert)
    if stage.type == "Split" and is_isolating:
        return stage.pattern.get("Regex", "")
    return ""


def _spelled(match: re.Match[str]) -> str:
    members = _PROPERTY.sub(lambda name: _IN_ASCII[name[1]], match[0])
    return members if match[0].startswith("[") else f"[{members}]"
