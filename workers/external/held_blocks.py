"""The blocks that an external engine holds, as our digests.

Owns the tree of the engine's blocks. The engine's hashes only identify blocks; our digests are
computed from the tokens and the position, at our block size, whatever the engine's block size is. A
digest is held while the engine holds every token up to its end. A block whose parent was evicted is
out of reach, for the engine as well, and in reach again when the parent is back. Must not know how
events travel.

The engine guarantees that one hash names one content. Blocks that our digests cannot express are
left out and counted: on other media, of a cache that keeps only a window of the prefix, of adapters
without a name, with images, or with tokens that do not add up.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Literal, final

from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot
from protocol.tokens import TOKEN_BYTES, pack_tokens
from workers.external.changes import BlockChanges
from workers.external.vllm_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored

LeftOut = Literal["medium", "group", "adapter", "keys", "tokens", "overflow"]

Roots = Callable[[str, str], BlockDigest | None]
"""(adapter, salt) of the engine -> our root digest; None for a salt that is not ours."""

_WHOLE_PREFIX: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class CopyReports(Enum):
    """How an engine reports a block that it holds twice.

    vLLM keeps both copies when two requests compute the same block, and reports each: COUNTED.
    SGLang has one copy, and some engines report only the end of the last copy: SINGLE. Counting the
    copies of such an engine would promise blocks that are gone. Not counting vLLM's loses a shared
    prefix for good when the second copy is evicted, because the first stays in use and is never
    reported again.
    """

    COUNTED = auto()
    SINGLE = auto()


def model_roots(model: str) -> Roots:
    """The root digests of a model. Our salts reach the engine as hexadecimal digits."""

    def root(adapter: str, salt: str) -> BlockDigest | None:
        try:
            return root_digest(model, adapter, bytes.fromhex(salt))
        except ValueError:
            return None

    return root


@final
class _Block:
    """A block of the engine. `tokens` are kept until the block is placed; afterwards only `tail` is
    kept, the tokens of an incomplete block of ours.
    """

    __slots__ = ("copies", "digests", "end", "is_reached", "parent", "tail", "tokens")

    def __init__(self, parent: BlockHash | None, tokens: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.copies = 1
        self.is_reached = False
        self.digests: tuple[BlockDigest, ...] = ()
        self.end: BlockDigest | None = None
        self.tail = b""

    def place(self, end: BlockDigest, tail: bytes, block_size: int) -> None:
        """Place the block after a chain of ours that ends at `end` and leaves `tail`."""
        stream = tail + self.tokens
        self.digests = tuple(block_digests(end, stream, block_size))
        self.end = self.digests[-1] if self.digests else end
        self.tail = stream[len(self.digests) * block_size * TOKEN_BYTES :]
        self.tokens = b""


@final
class HeldBlocks:
    """The blocks of one engine. It remembers at most `max_blocks`, the engine's capacity."""

    def __init__(
        self, roots: Roots, *, block_size: int, max_blocks: int, copies: CopyReports
    ) -> None:
        self._roots = roots
        self._block_size = block_size
        self._max_blocks = max_blocks
        self._copies = copies
        self._blocks: dict[BlockHash, _Block] = {}
        self._children: dict[BlockHash, set[BlockHash]] = {}
        self._held: dict[BlockDigest, int] = {}
        self._changes = BlockChanges()
        self._group: int | None = None
        self.left_out: Counter[LeftOut] = Counter()

    def __len__(self) -> int:
        """The number of remembered blocks of the engine, in reach or not."""
        return len(self._blocks)

    def apply(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        """Apply one event. The caller keeps the order of events."""
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                if self._is_our_cache(event):
                    for block_hash in event.block_hashes:
                        self._remove(block_hash)
            case AllBlocksCleared():
                self.clear()

    def clear(self) -> None:
        """Forget all blocks: nothing is held, or what is held is unknown."""
        self._forget()
        self._group = None

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call, or one snapshot if `clear` was called since then."""
        return self._changes.take(self._held)

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of all that is held."""
        return self._changes.snapshot(self._held)

    def _forget(self) -> None:
        """Forget all blocks of an engine that goes on."""
        self._blocks.clear()
        self._children.clear()
        self._held.clear()
        self._changes.cleared()

    def _is_our_cache(self, event: BlockStored | BlockRemoved) -> bool:
        """Whether the event is about the cache in GPU memory that holds whole prefixes.

        A hybrid model has several groups of layers; the first group that keeps whole prefixes
        stands for all.
        """
        if (event.medium or "GPU").upper() != "GPU" or event.locality == "REMOTE":
            self.left_out["medium"] += len(event.block_hashes)
            return False
        group = event.group_idx or 0
        if isinstance(event, BlockStored) and self._group is None:
            keeps_all = event.kv_cache_spec_kind is None
            if keeps_all or event.kv_cache_spec_kind in _WHOLE_PREFIX:
                self._group = group
        if group != self._group:
            self.left_out["group"] += len(event.block_hashes)
            return False
        return True

    def _store(self, event: BlockStored) -> None:
        if not self._is_our_cache(event):
            return
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            self.left_out["tokens"] += len(event.block_hashes)
            return
        if event.lora_id is not None and event.lora_name is None:
            self.left_out["adapter"] += len(event.block_hashes)
            return
        packed = pack_tokens(event.token_ids)
        stride = event.block_size * TOKEN_BYTES
        parent = event.parent_block_hash
        root, num_expressible = self._expressible(event)
        for index, block_hash in enumerate(event.block_hashes[:num_expressible]):
            self._add(block_hash, parent, packed[index * stride : (index + 1) * stride], root)
            parent, root = block_hash, None
        if num_expressible < len(event.block_hashes):
            self.left_out["keys"] += len(event.block_hashes) - num_expressible

    def _expressible(self, event: BlockStored) -> tuple[BlockDigest | None, int]:
        """Our root if the blocks begin a prompt, and the number of leading blocks that our digests
        can express: blocks without keys other than the adapter's name, and a salt on the first
        block of a prompt.
        """
        keys = [
            [key for key in block_keys or () if key != event.lora_name]
            for block_keys in event.extra_keys or ()
        ]
        root, salt = None, ""
        if event.parent_block_hash is None:
            if keys and len(keys[0]) == 1 and isinstance(keys[0][0], str):
                salt = str(keys[0].pop())
            root = self._roots(event.lora_name or "", salt)
            if root is None:
                return None, 0
        num_plain = next((index for index, others in enumerate(keys) if others), len(keys))
        return root, num_plain if keys else len(event.block_hashes)

    def _add(
        self,
        block_hash: BlockHash,
        parent: BlockHash | None,
        tokens: bytes,
        root: BlockDigest | None,
    ) -> None:
        known = self._blocks.get(block_hash)
        if known is not None:
            known.copies += self._copies is CopyReports.COUNTED
            return
        if len(self._blocks) >= self._max_blocks:
            self.left_out["overflow"] += 1
            self._forget()
        before = None if parent is None else self._blocks.get(parent)
        self._blocks[block_hash] = _Block(parent, tokens)
        if parent is not None:
            self._children.setdefault(parent, set()).add(block_hash)
        if root is not None:
            self._reach(block_hash, root, b"")
        elif before is not None and before.is_reached and before.end is not None:
            self._reach(block_hash, before.end, before.tail)

    def _remove(self, block_hash: BlockHash) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            return
        block.copies -= 1
        if block.copies:
            return
        if block.is_reached:
            self._lose(block_hash)
        del self._blocks[block_hash]
        siblings = self._children.get(block.parent) if block.parent is not None else None
        if siblings is not None and block.parent is not None:
            siblings.discard(block_hash)
            if not siblings:
                del self._children[block.parent]

    def _reach(self, first: BlockHash, end: BlockDigest, tail: bytes) -> None:
        """Mark a block and its descendants as in reach, parents first."""
        stack = [(first, end, tail)]
        while stack:
            block_hash, end, tail = stack.pop()
            block = self._blocks[block_hash]
            if block.end is None:
                block.place(end, tail, self._block_size)
            block.is_reached = True
            for digest in block.digests:
                self._hold(digest)
            children = self._children.get(block_hash, ())
            stack.extend((child, block.end or end, block.tail) for child in children)

    def _lose(self, first: BlockHash) -> None:
        """Mark a block and its descendants as out of reach, children first."""
        stack, lost = [first], list[_Block]()
        while stack:
            block_hash = stack.pop()
            block = self._blocks[block_hash]
            block.is_reached = False
            lost.append(block)
            stack.extend(self._children.get(block_hash, ()))
        for block in reversed(lost):
            for digest in reversed(block.digests):
                self._release(digest)

    def _hold(self, digest: BlockDigest) -> None:
        """Count a holder of the digest. Two blocks of the engine, which a private salt separates,
        may be one of ours.
        """
        count = self._held.get(digest, 0)
        self._held[digest] = count + 1
        if not count:
            self._changes.stored(digest)

    def _release(self, digest: BlockDigest) -> None:
        count = self._held[digest] - 1
        if count:
            self._held[digest] = count
            return
        del self._held[digest]
        self._changes.dropped(digest)
