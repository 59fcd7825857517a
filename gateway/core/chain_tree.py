"""Many chains of block digests, with what they share stored once.

Owns a compressed tree: a node is a run of blocks that the same chains pass, so that entering,
leaving and asking cost a few comparisons per fork and one bisection, whatever the length. Must not
know what the chains are: prompts that run on a worker, or recent ones of conversations.
"""

from collections.abc import Sequence
from typing import Final

from protocol.ids import BlockDigest


class _Node:
    """Blocks `start` to `end` of `chain`, which `num_chains` chains pass. Its children pass it too,
    so none has more.
    """

    __slots__ = ("chain", "children", "end", "num_chains", "start")

    def __init__(self, chain: Sequence[BlockDigest], start: int, end: int, num_chains: int) -> None:
        self.chain = chain
        self.start = start
        self.end = end
        self.num_chains = num_chains
        self.children: dict[BlockDigest, _Node] = {}

    def shared_with(self, chain: Sequence[BlockDigest]) -> int:
        """How far `chain`, which agrees with this node at `start`, goes along with it."""
        mine, end = self.chain, self.end
        if len(chain) >= end and chain[end - 1] == mine[end - 1]:
            return end
        low, high = self.start + 1, min(end, len(chain))
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] == mine[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def split(self, at: int) -> None:
        """End here; the rest becomes the only child."""
        rest = _Node(self.chain, at, self.end, self.num_chains)
        rest.children = self.children
        self.children, self.end = {self.chain[at]: rest}, at

    def absorb_only_child(self) -> None:
        """Undo a split that no chain needs any more."""
        if len(self.children) == 1:
            (child,) = self.children.values()
            if child.num_chains == self.num_chains:
                self.chain, self.end, self.children = child.chain, child.end, child.children


class ChainTree:
    """A multiset of chains."""

    def __init__(self) -> None:
        self._root: Final = _Node((), 0, 0, 0)

    def enter(self, chain: Sequence[BlockDigest]) -> int:
        """Add the chain; the number of its blocks that no other one has."""
        node, position = self._root, 0
        while position < len(chain):
            child = node.children.get(chain[position])
            if child is None:
                node.children[chain[position]] = _Node(chain, position, len(chain), 1)
                return len(chain) - position
            shared = child.shared_with(chain)
            if shared < child.end:
                child.split(shared)
            child.num_chains += 1
            node, position = child, shared
        return 0

    def leave(self, chain: Sequence[BlockDigest]) -> int:
        """Take back one `enter`; the number of blocks that nobody has any more. Raises `KeyError`
        for a chain that is not here.
        """
        node, position, freed = self._root, 0, 0
        while position < len(chain):
            child = node.children[chain[position]]
            child.num_chains -= 1
            if not child.num_chains:
                del node.children[chain[position]]
                freed = len(chain) - position
                break
            node, position = child, child.end
        if node is not self._root:
            node.absorb_only_child()
        return freed

    def depth(self, chain: Sequence[BlockDigest]) -> int:
        """How many leading blocks of the chain are here."""
        node, position = self._root, 0
        while position < len(chain):
            child = node.children.get(chain[position])
            if child is None:
                break
            position = child.shared_with(chain)
            if position < child.end:
                break
            node = child
        return position

    def spans(self, chain: Sequence[BlockDigest]) -> list[tuple[int, int]]:
        """Along the chain: (end, number of chains that share the blocks up to there), from the
        start on, until nobody shares any.
        """
        spans: list[tuple[int, int]] = []
        node, position = self._root, 0
        while position < len(chain):
            child = node.children.get(chain[position])
            if child is None:
                break
            position = child.shared_with(chain)
            spans.append((position, child.num_chains))
            if position < child.end:
                break
            node = child
        return spans
