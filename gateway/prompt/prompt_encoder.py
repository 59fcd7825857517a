"""A rendered prompt -> packed token ids, most of which were encoded before.

Owns the cut of prompts in front of the template's control tokens and a memory of what each segment
encodes to, shared by all requests: turn N of an agent costs only its new segments, a repeated
prompt only look-ups. Where cutting is not exact (`segment_rule.py`) the whole prompt is one
stretch of that memory. Must not know templates, threads or blocks.

A prompt takes three steps, of which the middle one may run in a thread: `draft`, `encode` what the
draft is missing, `finish`. `draft` and `finish` belong to one thread. New segments are encoded word
by word where that is exact (`word_cache.py`).
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.prompt.control_tokens import MARK, ControlTokens
from gateway.prompt.packed_word_cache import text_bytes
from gateway.prompt.segment_cache import Generations
from gateway.prompt.segment_rule import is_separable
from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_breaks import word_breaks
from gateway.prompt.word_cache import Spelling, WordMemory
from protocol.tokens import pack_token, pack_tokens

MAX_BYTES: Final = 16 * 2**20
"""A 64 KB conversation takes 180 KB; agents of one kind share its system text and tools."""
_ENTRY_BYTES: Final = 300


class Draft(msgspec.Struct, frozen=True):
    """A prompt in stretches. `missing` are those whose ids are not known to `owner`, each once."""

    stretches: list[str]
    found: list[bytes | None]
    owner: bytes
    missing: list[str] = []

    @property
    def num_missing_chars(self) -> int:
        """How much text has to be encoded."""
        return sum(map(len, self.missing))


class Encoded(NamedTuple):
    """The packed ids of stretches, and what was learned with them about words."""

    packed: list[bytes]
    spelling: Spelling | None = None


class PromptEncoder:
    """The segments of one model's prompts."""

    def __init__(
        self, encoder: Encoder, control: ControlTokens, max_bytes: int = MAX_BYTES
    ) -> None:
        self._encoder = encoder
        self._control = control
        self._packed: Generations[str | tuple[bytes, str]] = Generations(max_bytes, _entry_bytes)
        # A special token that cannot be marked is one wherever it is spelt; only a look at the
        # whole prompt finds those of the template.
        marks_all = control.texts == encoder.control.keys()
        self.is_separable = marks_all and is_separable(encoder.tokenizer, control.texts)
        breaks = word_breaks(encoder.tokenizer) if self.is_separable else None
        self._words = None if breaks is None else WordMemory(breaks, encoder.encode_texts)

    @property
    def num_bytes(self) -> int:
        """What the memory of segments holds."""
        return self._packed.num_bytes

    def draft(self, segments: list[str], owner: bytes = b"") -> Draft:
        """Look up what is known of a prompt. In front of every segment but the first there was a
        mark (`ControlTokens`). Whoever shares no prefixes has a memory of its own as `owner`: the
        time of an answer would tell others what it has asked.
        """
        if not self.is_separable:
            return self._look_up([MARK.join(segments)], owner)
        first, *rest = segments
        draft = self._look_up([MARK + first, *rest] if first else rest, owner)
        if not draft.missing or all(map(self._begins_well, draft.missing)):
            return draft
        first, *rest = self._control.mend(segments)
        return self._look_up([MARK + first, *rest] if first else rest, owner)

    def encode(self, missing: Sequence[str], owner: bytes = b"") -> Encoded:
        """The packed ids of stretches, one by one. An `owner`'s words are not looked for either."""
        if not self.is_separable:
            prompts = (self._control.read(stretch.split(MARK)) for stretch in missing)
            return Encoded([pack_tokens(self._encoder.encode(prompt)) for prompt in prompts])
        tokens = [self._control.token_of(stretch) for stretch in missing]
        texts = [
            stretch.removeprefix(MARK)[len(token) :]
            for stretch, token in zip(missing, tokens, strict=True)
        ]
        if owner or self._words is None:
            spelling = None
            packed = list(map(pack_tokens, self._encoder.encode_texts(texts)))
        else:
            spelling = self._words.spell(texts)
            packed = spelling.packed
        ids = map(self._packed_token, tokens)
        return Encoded([id_ + rest for id_, rest in zip(ids, packed, strict=True)], spelling)

    def finish(self, draft: Draft, encoded: Encoded | None = None) -> bytes:
        """The prompt's packed ids, given those of what was missing, which are kept."""
        if encoded is None or not draft.missing:
            return b"".join(draft.found)  # type: ignore[arg-type]
        if self._words is not None and encoded.spelling is not None:
            self._words.learn(encoded.spelling)
        fresh = dict(zip(draft.missing, encoded.packed, strict=True))
        for stretch, packed in fresh.items():
            self._packed.put((draft.owner, stretch) if draft.owner else stretch, packed)
        pairs = zip(draft.stretches, draft.found, strict=True)
        return b"".join([fresh[s] if packed is None else packed for s, packed in pairs])

    def _packed_token(self, token: str) -> bytes:
        return pack_token(self._encoder.control[token].id) if token else b""

    def _look_up(self, stretches: list[str], owner: bytes) -> Draft:
        keys: list[Any] = [(owner, stretch) for stretch in stretches] if owner else stretches
        found = self._packed.find(keys)
        if None not in found:
            return Draft(stretches, found, owner)
        pairs = zip(stretches, found, strict=True)
        missing = list({stretch: None for stretch, ids in pairs if ids is None})
        return Draft(stretches, found, owner, missing)

    def _begins_well(self, stretch: str) -> bool:
        return stretch[0:1] == MARK or self._control.token_of(stretch) != ""


def _entry_bytes(key: str | tuple[bytes, str], packed: bytes) -> int:
    stretch = key if isinstance(key, str) else key[1]
    return _ENTRY_BYTES + text_bytes(stretch) + len(packed)
