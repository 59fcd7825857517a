"""How many recurrent states an engine keeps, of running sequences and of prefixes.

Owns that division of memory, over plain numbers. Must not know the measurement (`peak_probe.py`),
what a state holds, nor which prefix has one (`workers.scheduler`).
"""

from typing import Final, NamedTuple

SHARE: Final = 0.125
"""The share of what weights leave for the states of running sequences, and again for those of
prefixes; the rest is for keys and values. A 27B in bfloat16 leaves 80 GiB of an H200's 141 GB: 64
sequences and 64 prefixes of 148 MiB each, and keys and values of a million tokens."""

LEAST_SEQS: Final = 4
CPU_SNAPSHOTS: Final = 64
_MOST_SNAPSHOTS: Final = 4096
_MOST_SWAPPED: Final = 32
_ROUNDING: Final = 768
"""Bytes of a host pool that its three tensors may lose (`host_pool.ALIGNMENT`)."""


class StateDemand(NamedTuple):
    """The bytes of one state in all layers, and the numbers that the configuration asks for, None
    for as many as fit. At most `most_seqs` sequences run at once. `host_bytes` of a host pool are
    for more states of prefixes. A running sequence also takes `ring_bytes` for rows that may be
    taken back.
    """

    state_bytes: int
    wanted_seqs: int | None
    wanted_snapshots: int | None
    most_seqs: int
    host_bytes: int = 0
    ring_bytes: int = 0


class StateMemory(NamedTuple):
    """Room for states of `num_seqs` sequences and `num_snapshots` prefixes, `num_on_host` of the
    latter in the host's memory; and the bytes that they take of the device's memory.
    """

    num_seqs: int
    num_snapshots: int
    num_bytes: int
    num_on_host: int = 0


class HostDivision(NamedTuple):
    """The division of a host pool: bytes for states of prefixes, and the numbers of states and of
    blocks of keys and values for preempted sequences.
    """

    prefix_bytes: int
    num_states: int
    num_blocks: int


def divide_host(
    host_bytes: int, block_bytes: int, state_bytes: int, *, swaps: bool
) -> HostDivision:
    """Divide `host_bytes`. A model without states (`state_bytes` 0) uses all for swapped sequences,
    one with states a quarter; without `swaps` none is for them.
    """
    if not swaps:
        return HostDivision(host_bytes if state_bytes else 0, 0, 0)
    share = host_bytes // 4 if state_bytes else host_bytes
    num_states = min(_MOST_SWAPPED, share // 4 // state_bytes) if state_bytes else 0
    num_blocks = max(0, share - num_states * state_bytes - _ROUNDING) // block_bytes
    if state_bytes and (num_states == 0 or num_blocks == 0):
        return HostDivision(host_bytes, 0, 0)
    return HostDivision(host_bytes - share if state_bytes else 0, num_states, num_blocks)


def choose_states(room_bytes: int, demand: StateDemand, *, is_card: bool) -> StateMemory:
    """Divide the room that weights leave. Numbers that the configuration asks for are taken even if
    they do not fit; the check of the memory left for keys and values reports that.
    """
    share = int(SHARE * room_bytes) // demand.state_bytes
    seqs = demand.wanted_seqs or min(demand.most_seqs, max(LEAST_SEQS, share))
    snapshots = demand.wanted_snapshots
    if snapshots is None:
        snapshots = min(share, _MOST_SNAPSHOTS if is_card else CPU_SNAPSHOTS)
    on_host = max(0, demand.host_bytes - _ROUNDING) // demand.state_bytes
    # One more slot is for rows that pad a step. On a CPU host slots take the same memory.
    num_slots = seqs + 1 + snapshots + (0 if is_card else on_host)
    num_bytes = num_slots * demand.state_bytes + (seqs + 1) * demand.ring_bytes
    return StateMemory(seqs, snapshots + on_host, num_bytes, on_host)
