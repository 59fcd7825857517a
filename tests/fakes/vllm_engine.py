"""A plain model of vLLM's prefix cache and of what it publishes about it.

Owns physical blocks, one entry per copy, and the batches about them, packed by another MessagePack
library than ours. Block hashes are sha256 chains as vLLM makes them, whole or cut to 64 bits. What
ought to be known of it in our digests is computed from whole prompts, the slow and obvious way.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from protocol.hashing import block_digests, root_digest
from protocol.ids import ID_BYTES, BlockDigest
from protocol.tokens import pack_tokens

MODEL = "m"
Hash = int | bytes

STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
REMOVED = ("block_hashes", "medium", "group_idx")


@dataclass(frozen=True)
class Copy:
    """One physical block: its name and all tokens up to its end."""

    name: Hash
    before: tuple[Hash, ...]
    tokens: tuple[int, ...]
    adapter: str


@dataclass
class VllmEngine:
    """The cache. `as_maps`: the newer encoding of events; `as_bytes`: hashes in full length."""

    block_size: int = 16
    as_maps: bool = False
    as_bytes: bool = False
    copies: list[Copy] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def compute(
        self, prompt: Sequence[int], adapter: str = "", *, beside_another: bool = False
    ) -> None:
        """A request runs: blocks of its prompt that are not cached come into the cache.

        `beside_another`: another one computed the same at the same time, so nothing was found.
        """
        chain = list(self._chain(tuple(prompt), adapter))
        held = {copy.name for copy in self.copies}
        num_hit = 0
        while not beside_another and num_hit < len(chain) and chain[num_hit].name in held:
            num_hit += 1
        fresh = chain[num_hit:]
        if fresh:
            self.copies += fresh
            self._tell_stored(fresh)

    def evict(self, index: int) -> None:
        """A physical block is used for something else."""
        copy = self.copies.pop(index)
        values = {"block_hashes": [copy.name], "medium": "GPU", "group_idx": None}
        self.events.append(self._shaped("BlockRemoved", REMOVED, values))

    def clear(self) -> None:
        """The prefix cache is reset."""
        self.copies.clear()
        self.events.append(self._shaped("AllBlocksCleared", (), {}))

    def batch(self, rank: int = 0) -> bytes:
        """The payload of one step: everything since the last one."""
        payload = pack([1.5, self.events, rank])
        self.events = []
        return payload

    def truth(self, our_block_size: int, model: str = MODEL) -> set[BlockDigest]:
        """Our digests of all prompts whose every block is cached."""
        held = {copy.name for copy in self.copies}
        digests = set[BlockDigest]()
        for copy in self.copies:
            if held.issuperset(copy.before):
                root = root_digest(model, copy.adapter)
                digests.update(block_digests(root, pack_tokens(copy.tokens), our_block_size))
        return digests

    def _chain(self, prompt: tuple[int, ...], adapter: str) -> Iterator[Copy]:
        name, before = b"", ()
        for end in range(self.block_size, len(prompt) + 1, self.block_size):
            text = repr((name, prompt[end - self.block_size : end], adapter))
            name = hashlib.sha256(text.encode()).digest()
            shown: Hash = name if self.as_bytes else int.from_bytes(name[:8], "big")
            yield Copy(shown, before, prompt[:end], adapter)
            before = (*before, shown)

    def _tell_stored(self, fresh: Sequence[Copy]) -> None:
        first = fresh[0]
        start = len(first.tokens) - self.block_size
        adapter = first.adapter or None
        values = {
            "block_hashes": [copy.name for copy in fresh],
            "parent_block_hash": first.before[-1] if first.before else None,
            "token_ids": list(fresh[-1].tokens[start:]),
            "block_size": self.block_size,
            "lora_id": 1 if adapter else None,
            "medium": "GPU",
            "lora_name": adapter,
            "extra_keys": [[adapter] for _ in fresh] if adapter else None,
            "kv_cache_spec_kind": "full_attention",
        }
        self.events.append(self._shaped("BlockStored", STORED, values))

    def _shaped(self, name: str, fields: Sequence[str], values: dict[str, Any]) -> Any:
        if self.as_maps:
            return {"type": name} | {key: value for key, value in values.items() if key in fields}
        return [name, *(values.get(key) for key in fields)]


def pack(value: object) -> bytes:
    """MessagePack by the library that is not ours."""
    packed = msgpack.packb(value, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def frames(seq: int, payload: bytes) -> list[bytes]:
    """What the PUB socket sends."""
    return [b"kv-events", seq.to_bytes(8, "big"), payload]


def replay_frames(seq: int, payload: bytes) -> list[bytes]:
    """What the replay socket answers."""
    return [seq.to_bytes(8, "big", signed=True), payload]


def split(digests: bytes) -> list[BlockDigest]:
    """The digests of one of our messages."""
    return [BlockDigest(digests[at : at + ID_BYTES]) for at in range(0, len(digests), ID_BYTES)]
