"""A radix tree of chains of block digests, which stores shared prefixes once.

A node is a run of blocks that the same chains contain, so adding, removing and looking up cost a
few comparisons per fork and one bisection, whatever the length. Must not know what the chains are:
prompts that run on a worker, or recent prompts of conversations.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from protocol.ids import BlockDigest


def common_prefix(
    left: Sequence[BlockDigest],
    right: Sequence[BlockDigest],
    least: int = 0,
    most: int | None = None,
) -> int:
    """How many leading blocks the two chains share, up to `most` (by default the shorter length).
    They must share at least `least`.

    A digest covers all blocks before it, so two chains that agree at a position agree everywhere
    before it: bisection is exact, and costs 12 comparisons for 100k tokens.
    """
    low, high = least, min(len(left), len(right)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


class _Node(msgspec.Struct, gc=False):
    """Blocks `start` to `end` of `chain`, which `num_chains` chains contain; `last` is the last of
    these blocks. A child's chains contain them too, so it has at most as many chains.
    """

    chain: Sequence[BlockDigest]
    start: int
    end: int
    last: BlockDigest | None
    num_chains: int
    children: "dict[BlockDigest, _Node]" = {}

    def shared_with(self, chain: Sequence[BlockDigest], length: int) -> int:
        """The end of the blocks that this node shares with `chain`, which agrees at `start`."""
        return common_prefix(self.chain, chain, self.start + 1, min(self.end, length))

    def split(self, at: int) -> None:
        """End this node at `at`; the rest of it becomes its only child."""
        rest = _Node(self.chain, at, self.end, self.last, self.num_chains, self.children)
        self.children, self.end, self.last = {self.chain[at]: rest}, at, self.chain[at - 1]

    def absorb_only_child(self) -> None:
        """Merge with the only child, unless a chain ends between them."""
        (child,) = self.children.values()
        if child.num_chains == self.num_chains:
            self.chain, self.end, self.last = child.chain, child.end, child.last
            self.children = child.children


class ChainTree:
    """A multiset of chains. Each method has its own loop down the tree: a shared function would add
    a call per node, a third of the cost of a short walk.
    """

    def __init__(self) -> None:
        self._root: Final = _Node((), 0, 0, None, 0)

    def enter(self, chain: Sequence[BlockDigest]) -> int:
        """Add the chain. Returns how many of its blocks no other chain has."""
        children, position, length = self._root.children, 0, len(chain)
        while position < length:
            first = chain[position]
            if first not in children:
                children[first] = _Node(chain, position, length, chain[-1], 1)
                return length - position
            child = children[first]
            if child.end > length or chain[child.end - 1] != child.last:
                child.split(child.shared_with(chain, length))
            child.num_chains += 1
            children, position = child.children, child.end
        return 0

    def leave(self, chain: Sequence[BlockDigest]) -> int:
        """Undo one `enter`. Returns how many blocks are now in no chain. Raises `KeyError` for a
        chain that was not entered.
        """
        node, position, freed, length = self._root, 0, 0, len(chain)
        while position < length:
            child = node.children[chain[position]]
            child.num_chains -= 1
            if not child.num_chains:
                del node.children[chain[position]]
                freed = length - position
                break
            node, position = child, child.end
        if node is not self._root and len(node.children) == 1:
            node.absorb_only_child()
        return freed

    def depth(self, chain: Sequence[BlockDigest]) -> int:
        """How many leading blocks of the chain are in the tree."""
        children, position = self._root.children, 0
        if not children:
            return 0
        length = len(chain)
        while position < length and chain[position] in children:
            child = children[chain[position]]
            if child.end > length or chain[child.end - 1] != child.last:
                return child.shared_with(chain, length)
            children, position = child.children, child.end
        return position

    def spans(self, chain: Sequence[BlockDigest]) -> list[tuple[int, int]]:
        """Pairs (end, number of chains that share the blocks up to `end`), from the start of the
        chain to its last shared block.
        """
        spans: list[tuple[int, int]] = []
        children, position, length = self._root.children, 0, len(chain)
        while position < length and chain[position] in children:
            child = children[chain[position]]
            if child.end > length or chain[child.end - 1] != child.last:
                spans.append((child.shared_with(chain, length), child.num_chains))
                break
            children, position = child.children, child.end
            spans.append((position, child.num_chains))
        return spans
