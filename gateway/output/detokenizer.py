"""The detokenizer: token ids -> text, incrementally.

There are two kinds. If tokens are bytes, tables map an id to text and bytes (0.1 us per token,
0.6 us within a character that is split over tokens); else the library's own stream is used
(0.64 us). Text never ends inside a character; bytes that are not UTF-8 become U+FFFD. Must not know
stop strings, tools or HTTP, except for the characters at which a later stage has to look.
"""

import codecs
import contextlib
from typing import Final, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from protocol.tokens import TOKEN_BYTES

_NONE: Final[frozenset[str]] = frozenset()
_NO_IDS: Final[frozenset[int]] = frozenset()
_MAX_PLAIN: Final = 16
"""Tables of plain texts per model; each has at most all of its tokens."""
_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """The text of one sequence. All pushes and the flush together equal one full decode.

    `is_whole`: the text so far ends between two characters, so the text of the next token depends
    on that token alone; a token whose text is in `plain` then need not be pushed.
    """

    is_whole: bool

    def plain(
        self,
        marks: frozenset[str],
        *,
        silent_ids: frozenset[int] = _NO_IDS,
        may_end_in_space: bool = False,
    ) -> "PlainTexts | None":
        """The texts that need no further look: they have none of the characters in `marks`. None if
        tokens have no text of their own. `silent_ids` have no text.
        """
        ...

    def push_one(self, token_id: int) -> str:
        """The text that this id completes; special tokens and unknown ids have none."""
        ...

    def flush(self) -> str:
        """The rest: U+FFFD for a character that was never completed."""
        ...


class TokenBytes(Protocol):
    """The texts of single tokens."""

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, special ones too; b"" for an unknown id."""
        ...


class ByteTable(dict[int, bytes]):
    """id -> the bytes that it adds to the text, filled as ids come up. All sequences of a model
    share it.

    Special tokens add nothing, except those whose text is in `shown`. `texts` has the text of the
    ids so far that are whole characters, as nearly all are.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[str] = _NONE) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._silent = special_ids(tokenizer, shown)
        self._plain: dict[tuple[frozenset[str], frozenset[int], bool], PlainTexts] = {}
        self.texts: dict[int, str] = {}

    def plain(
        self,
        marks: frozenset[str],
        *,
        silent_ids: frozenset[int] = _NO_IDS,
        may_end_in_space: bool = False,
    ) -> "PlainTexts":
        """See `Detokenizer`. Formats have few marks; stop strings may have any."""
        key = marks, silent_ids, may_end_in_space
        plain = self._plain.get(key)
        if plain is None:
            while len(self._plain) >= _MAX_PLAIN:
                del self._plain[next(iter(self._plain))]
            plain = self._plain[key] = PlainTexts(self, *key)
        return plain

    def __missing__(self, token_id: int) -> bytes:
        added = b"" if token_id in self._silent else self.bytes_of(token_id)
        # Ids without text are not kept: a broken worker may send any of 2**32.
        if added:
            self[token_id] = added
            with contextlib.suppress(UnicodeDecodeError):
                self.texts[token_id] = added.decode()
        return added

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, special ones too; b"" for an unknown id."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(map(BYTE_OF.__getitem__, token))
        except KeyError:
            return token.encode()


class PlainTexts(dict[bytes, str]):
    """A map from one id, packed as on the wire, to its text if that is whole characters without any
    of `marks` and does not end in white space (unless `may_end_in_space`); else to "". It is filled
    as ids come up. The key is packed because unpacking an id costs more than looking up its text.
    """

    def __init__(
        self,
        table: ByteTable,
        marks: frozenset[str],
        silent_ids: frozenset[int],
        may_end_in_space: bool,
    ) -> None:
        super().__init__()
        self._table = table
        self._marks = marks
        self._silent_ids = silent_ids
        self._may_end_in_space = may_end_in_space

    def __missing__(self, packed: bytes) -> str:
        if len(packed) != TOKEN_BYTES:
            return ""
        token_id = int.from_bytes(packed, "little")
        if token_id in self._silent_ids or not self._table[token_id]:
            return ""
        text = self._table.texts.get(token_id, "")
        ends_well = self._may_end_in_space or not text[-1:].isspace()
        self[packed] = text if ends_well and self._marks.isdisjoint(text) else ""
        return self[packed]


class ByteDetokenizer:
    """A `Detokenizer` over a byte table."""

    __slots__ = (
        "_decoder",
        "_table",
        "_texts",
        "is_whole",
    )

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._texts = table.texts
        # Most answers never split a character.
        self._decoder: codecs.IncrementalDecoder | None = None
        self.is_whole = True

    def plain(
        self,
        marks: frozenset[str],
        *,
        silent_ids: frozenset[int] = _NO_IDS,
        may_end_in_space: bool = False,
    ) -> PlainTexts:
        return self._table.plain(marks, silent_ids=silent_ids, may_end_in_space=may_end_in_space)

    def push_one(self, token_id: int) -> str:
        # Between characters a token's text does not depend on what was before it.
        if self.is_whole and (text := self._texts.get(token_id)) is not None:
            return text
        if self._decoder is None:
            self._decoder = _Utf8Decoder("replace")
        text = self._decoder.decode(self._table[token_id])
        self.is_whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        self.is_whole = True
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)


class StreamDetokenizer:
    """A `Detokenizer` over the tokenizer's own decoder. Special tokens whose text is in `shown` are
    part of the text.
    """

    is_whole = False

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[str] = _NONE) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._silent = special_ids(tokenizer, shown)
        self._size = tokenizer.get_vocab_size()
        self._ids: list[int] = []
        self._num_chars = 0

    def plain(
        self,
        marks: frozenset[str],
        *,
        silent_ids: frozenset[int] = _NO_IDS,
        may_end_in_space: bool = False,
    ) -> None:
        """None: the text of a token depends on those before it."""

    def push_one(self, token_id: int) -> str:
        if token_id >= self._size or token_id in self._silent:
            return ""
        self._ids.append(token_id)
        text = self._stream.step(self._tokenizer, token_id) or ""
        self._num_chars += len(text)
        return text

    def flush(self) -> str:
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        rest = whole[self._num_chars :]
        self._num_chars = len(whole)
        return rest


class StreamTokenBytes:
    """A `TokenBytes` over the tokenizer's own decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def bytes_of(self, token_id: int) -> bytes:
        if self._tokenizer.id_to_token(token_id) is None:
            return b""
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()


def special_ids(tokenizer: Tokenizer, shown: frozenset[str] = _NONE) -> frozenset[int]:
    """The ids of special tokens, except those whose text is in `shown`: they have no text in an
    answer.
    """
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(
        token_id
        for token_id, token in added.items()
        if token.special and token.content not in shown
    )


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable bytes map to themselves, the other bytes to U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + at): byte for at, byte in enumerate(others)
    }


BYTE_OF: Final = _byte_of_char()
"""The letter of each byte in the vocabularies of byte-level tokenizers, and the byte."""
