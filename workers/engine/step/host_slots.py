"""The slots of recurrent states on a CPU; on a card the slot of a sequence is its table row.

Owns which sequence has which slot. Must not know what a state is, nor which rows move it on.
"""

from collections.abc import Sequence
from typing import final

from protocol.messages import EngineFacts
from workers.engine.models.network import Network
from workers.engine.models.state_slots import StateStep
from workers.engine.step.states import States, states_of
from workers.scheduler import Chunk


@final
class HostSlots:
    """The slot of each sequence; none for a network without recurrent layers."""

    def __init__(
        self,
        model: Network,
        facts: EngineFacts,
        *,
        verifies: bool = False,
    ) -> None:
        self.kept: States = states_of(model, facts.max_seqs, facts.snapshots, verifies=verifies)
        self._by_seq: dict[int, int] = {}
        self._free = list(range(facts.max_seqs))

    def slot_of(self, seq: int) -> int:
        """The slot of a sequence. Raises `KeyError` if it has not started."""
        return self._by_seq[seq]

    def start(self, seqs: Sequence[int]) -> None:
        """Give each sequence a slot. Raises `IndexError` if more run than were planned for."""
        if self.kept.has_any:
            self._by_seq.update((seq, self._free.pop()) for seq in seqs)

    def end(self, seqs: Sequence[int]) -> None:
        """Free the slots; unknown sequences are ignored."""
        found = [self._by_seq.pop(seq) for seq in seqs if seq in self._by_seq]
        self._free.extend(found)
        self.kept.end(seqs)

    def num_bytes(self) -> int:
        """Bytes of states and rings."""
        return self.kept.num_bytes()

    def restore(self, chunks: Sequence[Chunk]) -> StateStep | None:
        """Restore the states with which these chunks begin. Returns the states that their rows, in
        this order, update.
        """
        slot_of = self._by_seq.__getitem__
        self.kept.restore(chunks, slot_of)
        return self.kept.host_step(chunks, slot_of)

    def save(self, chunks: Sequence[Chunk]) -> None:
        """Keep the states at the ends of these chunks that their `saves` name."""
        self.kept.save(chunks, self._by_seq.__getitem__)
