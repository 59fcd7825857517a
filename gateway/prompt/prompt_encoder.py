"""A rendered prompt -> packed token ids and their block digests, most of which were seen before.

Owns the cut of prompts in front of the template's control tokens, and a cache of what each segment
encodes to, shared by all requests: turn N of an agent costs only its new segments, a repeated
prompt only look-ups. Where cutting is not exact (`segment_rule.py`), the whole prompt is one entry
of that cache. New segments are encoded word by word where that is exact (`word_cache.py`). Must not
know templates, threads or workers.

A prompt takes three steps: `draft`, `encode` what the draft is missing, `finish`. The first two may
run in any thread; `finish` belongs to the thread that owns the cache.

`DigestCache` cuts packed ids into spans of 64 blocks; the digests of a span follow from its ids and
the digest before it. One hash over a span and one look-up replace 64 hashes in a loop: 15 us
instead of 125 us for the 760 blocks of a 64 KB prompt. Two spans with the same hash would give
wrong digests, as two blocks do; digests only say where a prompt may be cached, and the engine
compares token ids.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import xxhash

from gateway.api import ByteLru
from gateway.prompt.control_tokens import MARK, ControlTokens
from gateway.prompt.segment_rule import is_separable
from gateway.prompt.split_patterns import ascii_pattern
from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_cache import EncodedWords, WordCache, entry_bytes
from protocol.hashing import chained_digests, split_blocks
from protocol.ids import ID_BYTES, BlockDigest
from protocol.tokens import TOKEN_BYTES, pack_token, pack_tokens

MAX_BYTES: Final = 16 * 2**20
"""A 64 KB conversation takes 180 KB; agents of one kind share its system text and tools."""

SPAN_BLOCKS: Final = 64
MAX_DIGEST_BYTES: Final = 4 * 2**20
"""The digests of two million tokens in blocks of 32."""

_DIGEST_BYTES: Final = 8 + 33 + ID_BYTES
"""A `bytes` object and a reference to it."""
_SPAN_BYTES: Final = 250

_Key = str | tuple[bytes, str]


class Draft(msgspec.Struct, frozen=True):
    """A prompt in segments, each with its packed ids if they are in the cache of `owner`. `missing`
    has the other segments, each once.
    """

    stretches: list[str]
    keys: Sequence[_Key]
    found: list[bytes | None]
    owner: bytes
    missing: list[str] = []


class Encoded(NamedTuple):
    """The packed ids of what a draft was missing, and what to learn about words."""

    packed: list[bytes]
    words: EncodedWords | None = None


class PromptEncoder:
    """Encodes prompts of one model by segments. Keeps at most `max_bytes` of packed ids."""

    def __init__(
        self, encoder: Encoder, control: ControlTokens, max_bytes: int = MAX_BYTES
    ) -> None:
        self._encoder = encoder
        self._control = control
        self._packed: ByteLru[_Key, bytes] = ByteLru(max_bytes, entry_bytes)
        ids = {text: pack_token(token.id) for text, token in encoder.control.items()}
        self._packed_tokens = {"": b"", **ids}
        # A special token that cannot be marked is one wherever it is spelled; only the whole prompt
        # tells which of them are the template's.
        marks_all = control.texts == encoder.control.keys()
        self.is_separable = marks_all and is_separable(encoder.tokenizer, control.texts)
        self._words: WordCache | None = None
        if self.is_separable and (pattern := ascii_pattern(encoder.tokenizer)) is not None:
            self._words = WordCache(encoder.tokenizer, pattern, encoder.encode_texts)

    @property
    def num_bytes(self) -> int:
        return self._packed.num_bytes

    def draft(self, segments: list[str], owner: bytes = b"") -> Draft:
        """Look up the segments of a prompt. In front of every segment except the first there was a
        mark (`ControlTokens`). An `owner` has a separate cache: otherwise response times would show
        others which prompts it has sent.
        """
        if not self.is_separable:
            return self._look_up(["", MARK.join(segments)], owner)
        draft = self._look_up(segments, owner)
        tokens = self._control.tokens_of(draft.missing) if draft.missing else []
        if "" in tokens and any(
            not token and stretch[:1] != MARK
            for token, stretch in zip(tokens, draft.missing, strict=True)
        ):
            return self._look_up(self._control.mend(segments), owner)
        return draft

    def encode(self, draft: Draft) -> Encoded:
        """The packed ids of the missing segments. For an `owner` words are not looked up either."""
        if not self.is_separable:
            prompts = (self._control.read(stretch.split(MARK)) for stretch in draft.missing)
            return Encoded([pack_tokens(self._encoder.encode(prompt)) for prompt in prompts])
        tokens = self._control.tokens_of(draft.missing)
        texts = [
            stretch.removeprefix(MARK)[len(token) :]
            for stretch, token in zip(draft.missing, tokens, strict=True)
        ]
        if draft.owner or self._words is None:
            words = None
            packed = list(map(pack_tokens, self._encoder.encode_texts(texts)))
        else:
            words = self._words.encode(texts)
            packed = words.packed
        pairs = zip(tokens, packed, strict=True)
        return Encoded([self._packed_tokens[token] + rest for token, rest in pairs], words)

    @property
    def may_cut(self) -> bool:
        """Whether a text may be cut in front of a space that follows a printed character."""
        return self._words is not None

    def encode_piece(self, piece: str, *, is_first: bool) -> bytes:
        """The packed ids of a piece of a missing segment, of which the first may begin with a
        control token.
        """
        if is_first:
            return self.encode(Draft([], [], [], b"", [piece])).packed[0]
        return pack_tokens(self._encoder.encode_texts([piece])[0])

    def finish(self, draft: Draft, encoded: Encoded | None = None) -> bytes:
        """The prompt's packed ids. Keeps the ids of the missing segments in the cache."""
        if encoded is None or not draft.missing:
            return b"".join(draft.found)  # type: ignore[arg-type]
        if self._words is not None and encoded.words is not None:
            self._words.learn(encoded.words)
        fresh = dict(zip(draft.missing, encoded.packed, strict=True))
        packed: list[bytes] = []
        for stretch, ids in zip(draft.stretches, draft.found, strict=True):
            packed.append(fresh[stretch] if ids is None else ids)
        self._packed.put(zip(draft.keys, packed, strict=True))
        return b"".join(packed)

    def _look_up(self, segments: list[str], owner: bytes) -> Draft:
        """The mark tells text before the first control token from text that begins with one."""
        stretches = [MARK + segments[0], *segments[1:]] if segments[0] else segments[1:]
        keys: Sequence[_Key] = _owned(owner, stretches) if owner else stretches
        found = self._packed.find(keys)
        if None not in found:
            return Draft(stretches, keys, found, owner)
        pairs = zip(stretches, found, strict=True)
        missing = list({stretch: None for stretch, ids in pairs if ids is None})
        return Draft(stretches, keys, found, owner, missing)


def _owned(owner: bytes, stretches: list[str]) -> list[_Key]:
    return [(owner, one) for one in stretches]


class DigestCache:
    """`protocol.hashing.block_digests` with a cache."""

    def __init__(self, max_bytes: int = MAX_DIGEST_BYTES) -> None:
        self._spans: ByteLru[bytes, tuple[BlockDigest, ...]] = ByteLru(max_bytes, _span_bytes)

    def __repr__(self) -> str:
        return f"<DigestCache {self._spans!r}>"

    @property
    def num_bytes(self) -> int:
        return self._spans.num_bytes

    def digests(self, root: BlockDigest, packed: bytes, block_size: int) -> tuple[BlockDigest, ...]:
        """The same as `block_digests`."""
        span_bytes = SPAN_BLOCKS * block_size * TOKEN_BYTES
        chain: list[BlockDigest] = []
        parent = root
        end = len(packed) - len(packed) % (block_size * TOKEN_BYTES)
        for start in range(0, end, span_bytes):
            ids = packed[start : min(end, start + span_bytes)]
            # The block size as seed: the same ids in other blocks have other digests.
            key = xxhash.xxh3_128_digest(parent + ids, seed=block_size)
            span = self._spans.get(key)
            if span is None:
                span = tuple(chained_digests(parent, split_blocks(ids, block_size)))
                self._spans.put([(key, span)])
            chain += span
            parent = span[-1]
        return tuple(chain)


def _span_bytes(_key: bytes, span: tuple[BlockDigest, ...]) -> int:
    return _SPAN_BYTES + _DIGEST_BYTES * len(span)
