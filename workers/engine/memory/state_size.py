"""How many recurrent states an engine keeps, of running sequences and of prefixes.

Owns that division of memory, over plain numbers. Must not know the measurement (`peak_probe.py`),
what a state holds, nor which prefix has one (`workers.scheduler`).
"""

from typing import Final, NamedTuple

SHARE: Final = 0.125
"""The share of the memory beside the weights that the states of running sequences take; the states
of prefixes take an equal share, and keys and values the rest. A 27B in bfloat16 leaves 80 GiB of an
H200's 141 GB: 64 sequences and 64 prefixes of 148 MiB each, and keys and values of a million
tokens.
"""

LEAST_SEQS: Final = 4
CPU_SNAPSHOTS: Final = 64
_MOST_SNAPSHOTS: Final = 4096


class StateDemand(NamedTuple):
    """The bytes of one state in all layers, and the numbers that the configuration asks for, None
    for as many as fit. At most `most_seqs` sequences run at once. A running
    sequence also takes `ring_bytes` for rows that may be taken back.
    """

    state_bytes: int
    wanted_seqs: int | None
    wanted_snapshots: int | None
    most_seqs: int
    ring_bytes: int = 0


class StateMemory(NamedTuple):
    """Room for states of `num_seqs` sequences and `num_snapshots` prefixes, and the bytes that they
    take.
    """

    num_seqs: int
    num_snapshots: int
    num_bytes: int


def choose_states(room_bytes: int, demand: StateDemand, *, is_card: bool) -> StateMemory:
    """Divide the room that weights leave. Numbers that the configuration asks for are taken even if
    they do not fit; the check of the memory left for keys and values reports that.
    """
    share = int(SHARE * room_bytes) // demand.state_bytes
    seqs = demand.wanted_seqs or min(demand.most_seqs, max(LEAST_SEQS, share))
    snapshots = demand.wanted_snapshots
    if snapshots is None:
        snapshots = min(share, _MOST_SNAPSHOTS if is_card else CPU_SNAPSHOTS)
    # One more slot is for rows that pad a step.
    num_bytes = (seqs + 1 + snapshots) * demand.state_bytes + (seqs + 1) * demand.ring_bytes
    return StateMemory(seqs, snapshots, num_bytes)
