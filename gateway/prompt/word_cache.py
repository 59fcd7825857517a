"""Text -> packed token ids, most of whose words were encoded before.

Owns a memory of what words, and the pieces that a tokenizer cuts them into, encode to: a tokenizer
takes 1.2 us for every token, a known word is a look-up of 0.1 us. Only where it is proven that a
text's ids are those of its words (`word_breaks.py`). Must not know prompts.

`spell` only reads the memory, so it may run in any thread; what is to be kept goes back with its
answer, to `learn` in the thread that owns the memory. A word is kept when it comes the second time:
most that came once never come again.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gateway.prompt.packed_word_cache import MAX_WORD_CHARS, PackedWords
from gateway.prompt.word_breaks import WordBreaks, is_printed
from protocol.tokens import pack_tokens

MAX_BYTES: Final = 4 * 2**20
"""Of words, and as much of pieces: about 20,000 each."""
MAX_TEXT_CHARS: Final = 16 * 1024
"""Longer texts are left to the tokenizer, which releases the GIL: this holds it for 1 to 2 ms."""
MAX_UNKNOWN: Final = 512
"""Pieces that are encoded here at a time, 1 us each; texts with more are left as well. It is also
what the loop has to learn at a time."""
MAX_PIECE_CHARS: Final = 256
"""Longer ones take the model too long with the GIL."""
MAX_ONCE: Final = 16_384
"""Words that came once."""
MAX_NEW: Final = 64
"""Words that are learned at a time, at 2 us and more."""
_ALONE_CHARS: Final = 20
"""What is encoded by itself takes 4 us, as long as so many characters of a longer text."""
_FEW: Final = 8
"""Word by word is the faster way while an eighth is unknown at most."""
_INDENT: Final = "  "
"""Text with it is code, or a table: its words are cut at every space, which pieces are not."""
_CUT: Final = "\0"
"""Text with it is never cut."""

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
Parts = Sequence[bytes | str]
"""A text in ids, and in stretches that have to be encoded."""


class Spelling(NamedTuple):
    """Texts in packed ids, and what came with them: pieces and words to keep, and words that are
    to be kept if they come again.
    """

    packed: list[bytes]
    pieces: dict[str, bytes]
    words: dict[str, bytes]
    once: Collection[str]


class WordMemory:
    """The words of one model, each with the space before it. `encode` gives the ids of texts."""

    def __init__(self, breaks: WordBreaks, encode: Encode, max_bytes: int = MAX_BYTES) -> None:
        self._breaks = breaks
        self._encode = encode
        self._words = PackedWords(max_bytes)
        self._pieces = PackedWords(max_bytes)
        self._once: dict[str, None] = {}

    @property
    def num_bytes(self) -> int:
        """What words and pieces hold."""
        return self._words.num_bytes + self._pieces.num_bytes

    @property
    def num_once(self) -> int:
        """How many words are waited for to come again."""
        return len(self._once)

    def spell(self, texts: Sequence[str]) -> Spelling:
        """The ids of each text, as `encode` has them."""
        missing: dict[str, None] = {}
        pieces: dict[str, bytes] = {}
        spelt = [self._parts(text, missing, pieces) for text in texts]
        if not missing:
            return Spelling(self._joined(spelt), pieces, {}, ())
        again = list(islice(filter(self._once.__contains__, missing), MAX_NEW))
        by_word = [[self._in_pieces(word, pieces)] for word in again]
        packed = self._joined([*spelt, *by_word])
        words = dict(zip(again, packed[len(texts) :], strict=True))
        return Spelling(packed[: len(texts)], pieces, words, missing)

    def learn(self, spelling: Spelling) -> None:
        """Keep what is new."""
        if spelling.pieces:
            self._pieces.add(spelling.pieces)
        if not spelling.once:
            return
        self._words.add(spelling.words)
        self._once.update(dict.fromkeys(spelling.once))
        for word in spelling.words:
            self._once.pop(word, None)
        if len(self._once) > MAX_ONCE:
            young = islice(self._once, len(self._once) - MAX_ONCE // 2, None)
            self._once = dict.fromkeys(young)

    def _joined(self, spelt: list[Parts]) -> list[bytes]:
        """The ids of each; what has to be encoded is, all at once."""
        strings = [part for parts in spelt for part in parts if type(part) is str]
        if not strings:
            return [b"".join(parts) for parts in spelt]  # type: ignore[arg-type]
        unknown = list(dict.fromkeys(strings))
        fresh = dict(zip(unknown, map(pack_tokens, self._encode(unknown)), strict=True))
        return [
            b"".join([part if isinstance(part, bytes) else fresh[part] for part in parts])
            for parts in spelt
        ]

    def _parts(self, text: str, missing: dict[str, None], pieces: dict[str, bytes]) -> Parts:
        """The text's parts; words and pieces that are not known are noted."""
        if len(text) > MAX_TEXT_CHARS or _CUT in text:
            return [text]
        if _INDENT in text and text.isascii() and self._breaks.pieces is not None:
            return [self._in_pieces(text, pieces)]
        words = text.replace(" ", _CUT + " ").split(_CUT)
        if not words[0]:
            del words[0]
        found = list(map(self._words.known.get, words))
        if None not in found:
            return [b"".join(found)]  # type: ignore[arg-type]
        unknown = {
            word: None
            for word, ids in zip(words, found, strict=True)
            if ids is None and word != " "
        }
        if len(missing) < MAX_ONCE:
            missing.update({word: None for word in unknown if _is_word(word)})
        if found.count(None) * _FEW > len(words) and text.isascii():
            return [self._in_pieces(text, pieces)]
        parts = self._between(words, found, pieces)
        num_strings = len([part for part in parts if type(part) is str])
        return [text] if num_strings * _ALONE_CHARS > len(text) else parts

    def _between(
        self, words: list[str], found: list[bytes | None], pieces: dict[str, bytes]
    ) -> Parts:
        """Known words, and what is between them in pieces. What does not end like a word goes
        together with the next.
        """
        parts: list[bytes | str] = []
        at, num_words = 0, len(words)
        found.append(None)
        while (start := found.index(None, at)) < num_words:
            parts.append(b"".join(found[at:start]))  # type: ignore[arg-type]
            run, at = words[start], start + 1
            while at < num_words and (
                not is_printed(run[-1])
                or (found[at] is None and words[at].isascii() == run.isascii())
            ):
                run += words[at]
                at += 1
            parts.append(self._in_pieces(run, pieces))
        parts.append(b"".join(found[at:num_words]))  # type: ignore[arg-type]
        return parts

    def _in_pieces(self, text: str, pieces: dict[str, bytes]) -> bytes | str:
        """The ids of all pieces; the text if the pieces are not known."""
        cut = self._breaks.pieces
        texts = None if cut is None or not text.isascii() else cut.pieces_of(text)
        if cut is None or texts is None:
            return text
        found = list(map(self._pieces.known.get, texts))
        at = 0
        for _ in range(found.count(None)):
            at = found.index(None, at)
            piece = texts[at]
            if piece not in pieces:
                if len(piece) > MAX_PIECE_CHARS or len(pieces) >= MAX_UNKNOWN:
                    return text
                pieces[piece] = pack_tokens(cut.ids_of(piece))
            found[at] = pieces[piece]
        return b"".join(found)  # type: ignore[arg-type]


def _is_word(text: str) -> bool:
    return len(text) <= MAX_WORD_CHARS and is_printed(text[-1])
