"""Text -> packed token ids, most of whose words were encoded before.

Owns a cache of words, and of the pieces that a tokenizer splits text into. A tokenizer takes 1.2 us
for every token, a known word is a look-up of 0.1 us. For tokenizers whose expression is in the
table of `split_patterns.py`. Must not know prompts.

`encode` only reads the cache, so it may run in any thread; its answer goes to `learn` in the thread
that owns the cache. A word is kept when it comes the second time: most words that came once never
come again.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from gateway.api import ByteLru
from protocol.tokens import pack_tokens

MAX_BYTES: Final = 4 * 2**20
"""The bound for words, and again for pieces: about 16,000 entries each."""
MAX_TEXT_CHARS: Final = 16 * 1024
"""Longer texts go to the tokenizer, which releases the GIL: this holds it for 1 to 2 ms."""
MAX_NEW_PIECES: Final = 512
"""Pieces that are encoded here at a time, 1 us each; the tokenizer takes texts with more."""
MAX_PIECE_CHARS: Final = 256
"""Encoding a longer piece would hold the GIL for too long."""
MAX_WORD_CHARS: Final = 64
MAX_ONCE: Final = 16_384
"""How many words are remembered that were seen once."""
MAX_NEW_WORDS: Final = 64
"""New words that one call keeps, at 4 us each."""
_ALONE_CHARS: Final = 20
"""Encoding a separate text costs an additional 4 us, as much as this many characters."""
_FEW: Final = 8
"""Word by word is faster if at most one in this many words is unknown."""
_INDENT: Final = "  "
"""A text with an indentation is code or a table, whose words hardly repeat."""
_CUT: Final = "\0"
"""A text that matches is never cut."""
_ENTRY_BYTES: Final = 230
"""Two objects and their place in the cache."""
_SPELLED: Final = {byte: 0x100 + at for at, byte in enumerate([*range(0x21), 0x7F])}
"""How `ByteLevel` spells the characters of ASCII that are not printed."""

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
Parts = list[bytes | str]
"""A text in ids, and in stretches that the tokenizer has to encode."""


class EncodedWords(NamedTuple):
    """The packed ids of each text, what to keep, and the words to keep if they come again."""

    packed: list[bytes]
    pieces: dict[str, bytes]
    words: dict[str, bytes]
    once: Collection[str]


class WordCache:
    """The words and pieces of one model; a word has the space before it. `encode` is the
    tokenizer's, `pattern` finds the pieces of ASCII text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        pattern: re.Pattern[str],
        encode: Encode,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._splitter = _Splitter(tokenizer, pattern)
        self._encode = encode
        self._words: ByteLru[str, bytes] = ByteLru(max_bytes, entry_bytes)
        self._pieces: ByteLru[str, bytes] = ByteLru(max_bytes, entry_bytes)
        self._once: dict[str, None] = {}

    @property
    def num_bytes(self) -> int:
        return self._words.num_bytes + self._pieces.num_bytes

    def encode(self, texts: Sequence[str]) -> EncodedWords:
        """The ids of each text, as the tokenizer has them."""
        unknown: dict[str, None] = {}
        pieces: dict[str, bytes] = {}
        in_parts = [self._parts(text, unknown, pieces) for text in texts]
        if not unknown:
            return EncodedWords(self._joined(in_parts), pieces, {}, ())
        again = list(islice(filter(self._once.__contains__, unknown), MAX_NEW_WORDS))
        by_word: list[Parts] = [[word] for word in again]
        packed = self._joined(in_parts + by_word)
        words = dict(zip(again, packed[len(texts) :], strict=True))
        return EncodedWords(packed[: len(texts)], pieces, words, unknown)

    def learn(self, encoded: EncodedWords) -> None:
        if pieces := [item for item in encoded.pieces.items() if len(item[0]) <= MAX_WORD_CHARS]:
            self._pieces.put(pieces)
        if not encoded.once:
            return
        self._once.update(dict.fromkeys(encoded.once))
        if encoded.words:
            self._words.put(encoded.words.items())
        for word in encoded.words:
            del self._once[word]
        if len(self._once) > MAX_ONCE:
            young = islice(self._once, len(self._once) - MAX_ONCE // 2, None)
            self._once = dict.fromkeys(young)

    def _joined(self, in_parts: list[Parts]) -> list[bytes]:
        """The ids of each text; the tokenizer gets all stretches at once."""
        strings = [part for parts in in_parts for part in parts if type(part) is str]
        if not strings:
            return [b"".join(parts) for parts in in_parts]  # type: ignore[arg-type]
        unknown = list(dict.fromkeys(strings))
        fresh = dict(zip(unknown, map(pack_tokens, self._encode(unknown)), strict=True))
        return [
            b"".join([part if isinstance(part, bytes) else fresh[part] for part in parts])
            for parts in in_parts
        ]

    def _parts(self, text: str, unknown: dict[str, None], pieces: dict[str, bytes]) -> Parts:
        """The text's parts; adds the words that are not known to `unknown`, and the pieces that
        were not to `pieces`. A text is cut in front of every space that follows something printed.
        """
        if len(text) > MAX_TEXT_CHARS or _CUT in text:
            return [text]
        if _INDENT in text and text.isascii():
            return self._by_piece([text], pieces)
        words = text.replace(" ", _CUT + " ").split(_CUT)
        if not words[0]:
            del words[0]
        found = self._words.find(words)
        if None not in found:
            return found  # type: ignore[return-value]
        if len(unknown) < MAX_ONCE:
            for word, packed in zip(words, found, strict=True):
                is_word = word[-1].isprintable() and word != " "
                if packed is None and is_word and len(word) <= MAX_WORD_CHARS:
                    unknown[word] = None
        if found.count(None) * _FEW > len(words) and text.isascii():
            return self._by_piece([text], pieces)
        parts = self._by_piece(_unknown_between(words, found), pieces)
        num_strings = len([part for part in parts if type(part) is str])
        return [text] if num_strings * _ALONE_CHARS > len(text) else parts

    def _by_piece(self, parts: list[bytes | str], fresh: dict[str, bytes]) -> list[bytes | str]:
        """`parts` with the ids of the stretches in ASCII; unchanged if only the tokenizer can tell.
        Stretches end where text may be cut, so that they are split as if they were one.
        """
        stretches = "".join([part for part in parts if type(part) is str and part.isascii()])
        pieces = self._splitter.split(stretches)
        if not pieces:
            return parts
        found = self._pieces.find(pieces)
        at = 0
        for _ in range(found.count(None)):
            at = found.index(None, at)
            piece = pieces[at]
            if piece not in fresh:
                if len(piece) > MAX_PIECE_CHARS or len(fresh) >= MAX_NEW_PIECES:
                    return parts
                fresh[piece] = pack_tokens(self._splitter.ids_of(piece))
            found[at] = fresh[piece]
        if len(parts) == 1:
            return [b"".join(found)]  # type: ignore[arg-type]
        sizes, ids = map(len, pieces), iter(found)
        encoded: list[bytes | str] = []
        for part in parts:
            if isinstance(part, str) and part.isascii():
                num_left, packed = len(part), b""
                while num_left:
                    num_left -= next(sizes)
                    packed += next(ids)  # type: ignore[operator]
                encoded.append(packed)
            else:
                encoded.append(part)
        return encoded


def _unknown_between(words: list[str], found: list[bytes | None]) -> list[bytes | str]:
    """The ids of known words, and between them stretches of the others. What ends in something
    that is not printed goes together with the next word.
    """
    parts: list[bytes | str] = []
    at, num_words = 0, len(words)
    found.append(None)
    while (start := found.index(None, at)) < num_words:
        parts.append(b"".join(found[at:start]))  # type: ignore[arg-type]
        stretch, at = words[start], start + 1
        while at < num_words and (
            stretch[-1] == " "
            or not stretch[-1].isprintable()
            or (found[at] is None and words[at].isascii() == stretch.isascii())
        ):
            stretch += words[at]
            at += 1
        parts.append(stretch)
    parts.append(b"".join(found[at:num_words]))  # type: ignore[arg-type]
    return parts


class _Splitter:
    """The pieces of a text in ASCII, and the ids of each: the model takes 0.5 us for a piece, where
    the tokenizer takes 4 us for a text of one word.
    """

    def __init__(self, tokenizer: Tokenizer, pattern: re.Pattern[str]) -> None:
        self._model = tokenizer.model
        self._find = pattern.findall
        added = tokenizer.get_added_tokens_decoder()
        markup = {token.content: id_ for id_, token in added.items() if not token.special}
        # Added tokens that are looked for first might take letters of the others.
        are_alike = len({token.normalized for token in added.values() if not token.special}) <= 1
        self._markup = markup if are_alike else {}
        self._cut = re.compile(f"({_any_of(self._markup)})")
        others = [token.content for token in added.values() if token.content not in self._markup]
        if (normalizer := tokenizer.normalizer) is not None:
            # A token may be looked for in another form, as a ligature by its letters.
            pairs = [(text, normalizer.normalize_str(text)) for text in [*self._markup, *others]]
            others += [form for text, form in pairs if form != text]
        self._has_other = re.compile(_any_of(others)).search

    def split(self, text: str) -> list[str] | None:
        """The pieces of `text`, markup among them; None if only the tokenizer can tell. Special
        tokens are text, but the tokenizer finds them first.
        """
        if self._has_other(text):
            return None
        pieces: list[str] = []
        for at, part in enumerate(self._cut.split(text)):
            if at % 2:
                pieces.append(part)
            else:
                pieces += self._find(part)
        return pieces if "".join(pieces) == text else None

    def ids_of(self, piece: str) -> list[int]:
        if piece in self._markup:
            return [self._markup[piece]]
        return [token.id for token in self._model.tokenize(piece.translate(_SPELLED))]


def _any_of(texts: Iterable[str]) -> str:
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return "|".join(map(re.escape, longest_first)) or r"(?!)"


def entry_bytes(key: str | tuple[bytes, str], packed: bytes) -> int:
    """The most bytes that a cache needs for a text (with its owner, if any) and its ids. Computed
    from the text's value, because `sys.getsizeof` grows once its UTF-8 form was asked for.
    """
    text = key if isinstance(key, str) else key[1]
    return _ENTRY_BYTES + len(packed) + (len(text) if text.isascii() else 4 * len(text))
