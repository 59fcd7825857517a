"""The order in which cached prefixes are evicted: by what keeping them is expected to save.

Owns the formula, by which the card and the host tier (`tier/retention.py`) rank what they hold, and
the chains of the card's blocks that no sequence holds. Must not know block ids, memory or
sequences: a block is its digest. The time is an argument.

A chain is what one sequence left in the prefix cache, first block first. Its value, for each block,
is the chance that its conversation comes back soon, times the prefill that its last block saves.
Half of the pauses of a conversation are shorter than `within_s`; a pause has the survival function
w / (w + t) (a Lomax distribution, whose tail is as heavy as that of agents' pauses). So of a
conversation that comes back with probability p and has been away for t seconds:

    posterior = p S / (p S + 1 - p),  S = w / (w + t)
    value     = posterior / (w + t) * saved

A value falls while its conversation stays away, and among equal expectations the chain that was
released first has the least: without any expectation this is the order of least recent use. Within
a chain the last block goes first, so a prefix never has a hole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, final

from protocol.ids import BlockDigest
from workers.scheduler.integrity import require

DEPTH_TOKENS: Final = 32_768
"""At this position a token takes twice the prefill time of a first one: 21k tokens in an 8B on an
H200 (docs/routing-benchmark.md), more in hybrids.
"""

CHOOSE_EVERY_S: Final = 0.25
"""A victim stays one for so long, unless a chain is added or changed: values move slowly."""

_LEVELS: Final = 32
"""Chances are rounded to a 32nd, pauses and depths to powers of two, so that chains form few
classes. Within a class the one that was released first has the least value.
"""


class ReturnExpectation(NamedTuple):
    """With probability `chance` a conversation sends another request; half of those that come have
    come within `within_s` seconds.
    """

    chance: float
    within_s: float


UNKNOWN: Final = ReturnExpectation(0.5, 10.0)
NEVER: Final = ReturnExpectation(0.0, 1.0)

ReturnClass = tuple[float, float, float]
"""Chance, seconds, and what a block saves, in prefills of a first block."""

PLAIN: Final[ReturnClass] = (*UNKNOWN, 1.0)
"""The class of blocks of which nothing is known."""

OVER: Final[ReturnClass] = (*NEVER, 1.0)
"""The class of blocks that no request will want."""


def class_of(expected: ReturnExpectation, num_tokens: int) -> ReturnClass:
    """The class of a chain of `num_tokens` tokens."""
    chance = min(1.0, max(0.0, round(_LEVELS * expected.chance) / _LEVELS))
    within_s = 2.0 ** round(math.log2(min(86_400.0, max(1 / 16, expected.within_s))))
    depth = num_tokens / DEPTH_TOKENS
    return chance, within_s, 2.0 ** (round(2 * math.log2(1.0 + depth)) / 2)


def value(expected: ReturnClass, age_s: float) -> float:
    """The value of a block of a chain of this class that was released `age_s` seconds ago."""
    chance, within_s, saved = expected
    survival = within_s / (within_s + age_s)
    alive = chance * survival
    if alive <= 0.0:
        return 0.0
    return alive / (alive + 1.0 - chance) / (within_s + age_s) * saved


@final
class EvictionMeter:
    """The later cost of evictions. The meter remembers the blocks that were evicted last, at most
    `most`, until they are computed again.
    """

    __slots__ = ("_gone", "_most", "num_again", "num_evicted")

    def __init__(self, most: int) -> None:
        self.num_evicted = 0
        self.num_again = 0
        self._most = most
        self._gone: dict[BlockDigest, None] = {}

    def evicted(self, digest: BlockDigest) -> None:
        """The last copy of a block is gone."""
        self.num_evicted += 1
        self._gone[digest] = None
        if len(self._gone) > self._most:
            del self._gone[next(iter(self._gone))]

    def computed(self, digest: BlockDigest) -> None:
        """A block has been computed."""
        if digest in self._gone:
            del self._gone[digest]
            self.num_again += 1


@final
class KeptChain:
    """One chain. `order` counts releases; `is_kept` becomes False when it is forgotten."""

    __slots__ = ("digests", "expected", "is_kept", "name", "order", "released_at")

    def __init__(
        self, digests: list[BlockDigest], name: object, order: int, released_at: float
    ) -> None:
        self.digests = digests
        self.name = name
        self.order = order
        self.released_at = released_at
        self.expected = PLAIN
        self.is_kept = True


class NamedChain(Protocol):
    """A chain with a name: at first that of its request, then its conversation, at last None."""

    name: object


N = TypeVar("N", bound=NamedChain)


@final
class ChainNames(Generic[N]):
    """Which chain has which name. A conversation names the last of its chains."""

    def __init__(self) -> None:
        self._chains: dict[object, N] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def enter(self, chain: N) -> None:
        """Let a chain be found by its name, if it has one, in place of another of that name."""
        if chain.name is not None:
            self._chains[chain.name] = chain

    def pass_on(self, name: object, conversation: object) -> tuple[N | None, N | None]:
        """Give the chain `name` the name of its conversation. Returns that chain and the one which
        had the name before, now without any; None for what does not exist.
        """
        chain = self._chains.pop(name, None)
        if chain is None:
            return None, None
        before = self._chains.get(conversation)
        if before is not None:
            before.name = None
        chain.name = conversation
        self._chains[conversation] = chain
        return chain, before

    def leave(self, chain: N) -> None:
        """Forget a chain."""
        if self._chains.get(chain.name) is chain:
            del self._chains[chain.name]


class KeptChains:
    """All chains of one cache, and which cached blocks no sequence holds (`len`).

    Each of these blocks is in at least one chain. A chain ends where another one goes on: there it
    is forgotten, because the other holds all the blocks before, too.
    """

    def __init__(self, block_size: int = 1) -> None:
        self._block_size = block_size
        self._owners: dict[BlockDigest, KeptChain] = {}
        self._num_children: dict[BlockDigest, int] = {}
        self._classes: dict[ReturnClass, dict[int, KeptChain]] = {}
        self._by_name: ChainNames[KeptChain] = ChainNames()
        self._num_released = 0
        self._victim: KeptChain | None = None
        self._chosen_at = -math.inf

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[BlockDigest]:
        return iter(self._owners)

    def __contains__(self, digest: BlockDigest) -> bool:
        return digest in self._owners

    def stored_behind(self, parent: BlockDigest) -> None:
        """A block was cached whose prefix ends with `parent`."""
        self._num_children[parent] = self._num_children.get(parent, 0) + 1

    def take(self, digests: Iterable[BlockDigest]) -> None:
        """A sequence holds these blocks, which none held. Raises `KeyError` if one was held."""
        for digest in digests:
            del self._owners[digest]

    def keep(
        self, chain: Sequence[BlockDigest], free: Iterable[BlockDigest], name: object, now: float
    ) -> None:
        """A sequence has released `chain`, of which no sequence holds the blocks `free` any more.
        `name` is for `retain`; a chain of the same name is forgotten as one.
        """
        if not chain:
            return
        self._num_released += 1
        kept = KeptChain(list(chain), name, self._num_released, now)
        self._owners.update(dict.fromkeys(free, kept))
        self._enter(kept)
        self._by_name.enter(kept)
        self._victim = None

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> bool:
        """Set what is expected of the chain of that name, which belongs to `conversation` from now
        on. What an earlier turn of the conversation left beyond its next prompt is of no use: it
        goes first. False if there is no such chain.
        """
        chain, before = self._by_name.pass_on(name, conversation)
        if chain is None:
            return False
        if before is not None:
            self._reclass(before, OVER)
        self._reclass(chain, class_of(expected, len(chain.digests) * self._block_size))
        self._victim = None
        return True

    def pop(self, now: float) -> BlockDigest:
        """Forget the block of least value, and return it. Raises `KeyError` if all are held."""
        if not self._owners:
            raise KeyError("every cached block is held")
        while True:
            chain = self._victim
            if chain is None or now - self._chosen_at > CHOOSE_EVERY_S:
                chain = self._victim = self._choose(now)
                self._chosen_at = now
            digests = chain.digests
            digest = digests[-1]
            owner = self._owners.get(digest)
            goes_on = self._num_children.get(digest, 0) > 0
            if owner is None or goes_on or (owner is not chain and owner.is_kept):
                self._forget(chain)
                continue
            digests.pop()
            del self._owners[digest]
            if digests:
                self._leave_parent(digests[-1])
            else:
                self._forget(chain)
            return digest

    def check_integrity(self, parents: Mapping[BlockDigest, BlockDigest | None]) -> None:
        """Raise `IntegrityError` unless every block that no sequence holds is in a chain that ends
        with it or with a block behind it. `parents` has all cached blocks.
        """
        counted: dict[BlockDigest, int] = {}
        for parent in parents.values():
            if parent is not None:
                counted[parent] = counted.get(parent, 0) + 1
        known = {digest: number for digest, number in self._num_children.items() if number}
        require(counted == known, "the chains count other blocks behind blocks than there are")
        covered = {
            digest
            for chains in self._classes.values()
            for chain in chains.values()
            for digest in chain.digests
        }
        require(covered.issuperset(self._owners), "a block that none holds is in no chain")

    def _choose(self, now: float) -> KeptChain:
        """The chain of least value: of each class only the first can be it."""
        heads = [next(iter(chains.values())) for chains in self._classes.values()]
        if len(heads) == 1:
            return heads[0]
        return min(heads, key=lambda one: (value(one.expected, now - one.released_at), one.order))

    def _enter(self, chain: KeptChain) -> None:
        self._classes.setdefault(chain.expected, {})[chain.order] = chain

    def _leave(self, chain: KeptChain) -> None:
        chains = self._classes[chain.expected]
        del chains[chain.order]
        if not chains:
            del self._classes[chain.expected]

    def _reclass(self, chain: KeptChain, expected: ReturnClass) -> None:
        self._leave(chain)
        chain.expected = expected
        self._enter(chain)

    def _forget(self, chain: KeptChain) -> None:
        self._leave(chain)
        chain.is_kept = False
        self._by_name.leave(chain)
        self._victim = None

    def _leave_parent(self, parent: BlockDigest) -> None:
        left = self._num_children[parent] - 1
        if left:
            self._num_children[parent] = left
        else:
            del self._num_children[parent]
