"""Long prompts -> token ids, in steps of about 40 ms.

Owns where a long text may be cut, and how far a prompt is encoded. A step ends so that others can
have the thread, and so that a prompt which turns out too long ends there: the tokenizer needs 150
bytes of memory for every token of one call, 300 MB for a text of 7 MB. Must not know threads,
windows or whose prompt it is.

A text is cut in front of a space that follows a printed character, where that is exact
(`split_patterns.py`); a tokenizer of another kind gets each text at once.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.prompt.prompt_encoder import Draft, Encoded, PromptEncoder
from gateway.prompt.tokenizer import encode_batch
from protocol.tokens import TOKEN_BYTES, pack_tokens

if TYPE_CHECKING:
    from gateway.prompt.model_text import ModelText

STEP_CHARS: Final = 128 * 1024
_CUT: Final = re.compile(r"(?<=\S) ")


class StepwiseDraft:
    """The missing segments of a draft. `num_tokens` counts those that were found too; a segment
    that is missing in several places counts once.
    """

    def __init__(self, prompts: PromptEncoder, draft: Draft) -> None:
        self._prompts = prompts
        self._draft = draft
        self._steps = self._encode()
        self._packed: list[bytes] = []
        self.num_tokens = sum(len(ids) for ids in draft.found if ids) // TOKEN_BYTES

    @property
    def num_chars_at_once(self) -> int:
        """The longest text that a step has to encode as a whole."""
        may_cut = self._prompts.may_cut
        return max((_longest(one, may_cut=may_cut) for one in self._draft.missing), default=0)

    def step(self) -> bool:
        """Encode some more; returns whether that was all."""
        return next(self._steps, None) is None

    def finish(self) -> bytes:
        """The packed ids of the whole prompt, in the thread that owns the cache."""
        return self._prompts.finish(self._draft, Encoded(self._packed))

    def _encode(self) -> Iterator[bool]:
        for group in _groups(self._draft.missing):
            if len(group) > 1 or len(group[0]) <= STEP_CHARS or not self._prompts.may_cut:
                part = msgspec.structs.replace(self._draft, missing=group)
                packed = self._prompts.encode(part).packed
                self._packed += packed
                self.num_tokens += sum(map(len, packed)) // TOKEN_BYTES
                yield True
                continue
            whole = bytearray()
            head, *pieces = pieces_of(group[0])
            for piece in (head, *pieces):
                ids = self._prompts.encode_piece(piece, is_first=piece is head)
                whole += ids
                self.num_tokens += len(ids) // TOKEN_BYTES
                yield True
            self._packed.append(bytes(whole))


class StepwiseText:
    """A text without a chat around it, as `encode_raw` encodes it."""

    def __init__(self, text: "ModelText", prompt: str, *, add_special_tokens: bool) -> None:
        self._tokenizer = text.encoder.tokenizer
        self._special = add_special_tokens
        self._may_cut = text.prompts.may_cut
        self._prompt = prompt
        self._cut: list[str] = []
        self._at = 0
        self._packed = bytearray()
        self.num_tokens = 0

    @property
    def num_chars_at_once(self) -> int:
        """The longest text that a step has to encode as a whole."""
        return max(map(len, self._pieces))

    @property
    def _pieces(self) -> list[str]:
        """Found by the first step: to look through 30 MB without a space takes 0.4 s."""
        if not self._cut:
            self._cut = pieces_of(self._prompt) if self._may_cut else [self._prompt]
        return self._cut

    def step(self) -> bool:
        """Encode some more; returns whether that was all."""
        if len(self._pieces) == 1:
            self._packed += self._ids(self._pieces[0], special=self._special)
        else:
            self._packed += self._ids(self._pieces[self._at], special=False)
        self.num_tokens = len(self._packed) // TOKEN_BYTES
        self._at += 1
        return self._at >= len(self._pieces)

    def finish(self) -> bytes:
        """The packed ids of the whole text."""
        if len(self._pieces) == 1 or not self._special:
            return bytes(self._packed)
        before, after = self._around()
        return before + bytes(self._packed) + after

    def _ids(self, text: str, *, special: bool) -> bytes:
        return pack_tokens(encode_batch(self._tokenizer, [text], add_special_tokens=special)[0].ids)

    def _around(self) -> tuple[bytes, bytes]:
        """What the tokenizer puts before and after a text."""
        plain, whole = self._ids("a", special=False), self._ids("a", special=True)
        before, _, after = whole.partition(plain)
        return before, after


def pieces_of(text: str) -> list[str]:
    """`text` in pieces of at least `STEP_CHARS`, cut where that changes no ids."""
    pieces = []
    start, at = 0, STEP_CHARS
    while at < len(text):
        found = _CUT.search(text, at, at + STEP_CHARS)
        if found is None:
            at += STEP_CHARS
        elif text[found.start() - 1].isprintable():
            pieces.append(text[start : found.start()])
            start, at = found.start(), found.start() + STEP_CHARS
        else:
            at = found.end()
    return [*pieces, text[start:]]


def _longest(text: str, *, may_cut: bool) -> int:
    return max(map(len, pieces_of(text))) if may_cut else len(text)


def _groups(texts: list[str]) -> Iterator[list[str]]:
    """The texts in their order, together while they are short."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        if group and num_chars + len(text) > STEP_CHARS:
            yield group
            group, num_chars = [], 0
        group.append(text)
        num_chars += len(text)
    if group:
        yield group
