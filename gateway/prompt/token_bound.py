"""The fewest tokens that a text can have, from its bytes alone.

Owns measures of a text that no token can take more of than the greediest token of the vocabulary:
the bytes; for texts that the normalizer leaves alone also the letters and digits of ASCII, because
the longest tokens of most vocabularies are runs of spaces or dashes (128 bytes, where the longest
word has 20 to 40). A text needs at least as many tokens as its measure over that of the greediest
token. Counting takes 1 ns a byte, encoding 300 ns. Must not know prompts, templates or windows.

The proof needs a tokenizer that drops nothing and has a token for every byte; for others there is
no bound.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
from tokenizers import Tokenizer

from gateway.output import BYTE_OF
from gateway.prompt.segment_rule import Stage, stages_of
from gateway.prompt.split_patterns import TABLE

_WORD_BYTES: Final = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NOT_OF_WORDS: Final = bytes(sorted(set(range(256)) - _WORD_BYTES))
_SHRINKS: Final = {"NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4, "Lowercase": 3}
"""How many bytes may become one: three letters of Hangul one syllable, U+1FEF an accent of ASCII;
with compatibility forms U+1D400 an A. ASCII keeps its letters and digits.
"""
_KEEPING: Final = frozenset({"ByteLevel", "Prepend"})
_SPLITTING: Final = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "UnicodeScripts"})
_WHOLE: Final = frozenset(source for sources in TABLE for source in sources)
"""Expressions that match all of a text: what they do not match may be dropped, as it is nothing."""
_LETTERS: Final = frozenset(BYTE_OF)
_PIECE_CHARS: Final = 2**18
_ESCAPE_LETTERS: Final = 5
"""As in `\\u0041`."""


class TokenBound(NamedTuple):
    """The greediest token of a vocabulary in bytes, and in letters and digits of ASCII. `shrinks`
    is by how much the normalizer may shorten a text that is not ASCII.
    """

    most_bytes: int
    most_word_bytes: int
    shrinks: int = 1

    def fewest_tokens(self, texts: Iterable[str], enough: int) -> int:
        """A number of tokens that the `texts` have at least. Counting stops behind `enough`."""
        num_bytes = num_word_bytes = 0
        fewest = 0
        for part in _parts(texts):
            data = part.encode("utf-8", "surrogatepass")
            is_kept = self.shrinks == 1 or len(data) == len(part)
            num_bytes += len(data) // (1 if is_kept else self.shrinks)
            if is_kept:
                # An accent at the beginning of the next part may be composed with the last letter.
                num_word_bytes += max(0, len(data.translate(None, _NOT_OF_WORDS)) - 1)
            by_words = -(-num_word_bytes // self.most_word_bytes)
            fewest = max(by_words, -(-num_bytes // self.most_bytes))
            if fewest > enough:
                break
        return fewest

    def fewest_in_json(self, texts: Iterable[memoryview], enough: int) -> int:
        """`fewest_tokens` of texts that are strings of JSON in UTF-8, by their letters and digits.
        The letters and digits of an escape, at most five after each backslash, do not count as
        text.
        """
        num_word_bytes = fewest = 0
        for data in _json_parts(texts):
            has_plain_bytes = self.shrinks == 1 or (data.isascii() and data.find(b"\\u") < 0)
            if has_plain_bytes:
                escaped = _ESCAPE_LETTERS * (data.count(b"\\") + 1)
                in_words = len(data.translate(None, _NOT_OF_WORDS))
                num_word_bytes += max(0, in_words - escaped - 1)
            fewest = -(-num_word_bytes // self.most_word_bytes)
            if fewest > enough:
                break
        return fewest


def _json_parts(texts: Iterable[memoryview]) -> Iterator[bytes]:
    for text in texts:
        yield from (bytes(text[at : at + _PIECE_CHARS]) for at in range(0, len(text), _PIECE_CHARS))


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """The texts in pieces: each call that follows holds the GIL."""
    for text in texts:
        if len(text) <= _PIECE_CHARS:
            yield text
        else:
            yield from (text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS))


def token_bound(tokenizer: Tokenizer, tokenizer_json: bytes) -> TokenBound | None:
    """The bound of this tokenizer; None if its tokens may stand for any number of bytes."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    if any(token.lstrip or token.rstrip for token in added):
        return None
    normalizers, splits = stages_of(tokenizer.normalizer), stages_of(tokenizer.pre_tokenizer)
    if not all(map(_is_keeping, normalizers)) or not all(map(_drops_nothing, splits)):
        return None
    spelled = tokenizer.get_vocab(with_added_tokens=False)
    in_bytes = any(stage.type == "ByteLevel" for stage in normalizers + splits)
    if not _spells_all_bytes(tokenizer_json, spelled, in_bytes=in_bytes):
        return None
    texts = [token.content.encode() for token in added]
    if in_bytes:
        in_letters = filter(_LETTERS.issuperset, spelled)
        texts += [bytes(map(BYTE_OF.__getitem__, one)) for one in in_letters]
    else:
        texts += [one.encode() for one in spelled]
    shrinks = 1
    for stage in normalizers:
        shrinks *= _SHRINKS.get(stage.type, 1)
    words = max(len(text.translate(None, _NOT_OF_WORDS)) for text in texts)
    return TokenBound(max(map(len, texts)), max(words, 1), shrinks)


def _is_keeping(stage: Stage) -> bool:
    """Whether a normalizer makes no text shorter than `_SHRINKS` says."""
    if stage.type == "Replace":
        # The way in which models of SentencePiece write spaces.
        return stage.pattern.get("String") == " " and bool(stage.content)
    return stage.type in _KEEPING or stage.type in _SHRINKS


def _drops_nothing(stage: Stage) -> bool:
    if stage.type != "Split":
        return stage.type in _SPLITTING and stage.behavior != "Removed"
    if stage.behavior != "Removed":
        return True
    return stage.invert and stage.pattern.get("Regex") in _WHOLE


class _Model(msgspec.Struct):
    type: str = "BPE"
    byte_fallback: bool = False


class _File(msgspec.Struct):
    model: _Model


def _spells_all_bytes(tokenizer_json: bytes, spelled: Iterable[str], *, in_bytes: bool) -> bool:
    """Whether each byte has a token; otherwise a text may be dropped, or be one unknown token."""
    model = msgspec.json.decode(tokenizer_json, type=_File).model
    if in_bytes:
        return model.type == "BPE" and _LETTERS.issubset(spelled)
    is_falling_back = model.type in {"BPE", "Unigram"} and model.byte_fallback
    return is_falling_back and {f"<0x{byte:02X}>" for byte in range(256)}.issubset(spelled)
