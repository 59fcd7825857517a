"""How many blocks of keys and values fit.

Owns the division of memory, over plain numbers, and the error that names what is missing and which
setting helps. Must not know the measurement (`peak_probe.py`) nor how the cache is laid out.
"""

from dataclasses import dataclass
from typing import Final

from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.memory_room import MemoryRoom

CPU_CONTEXTS: Final = 4
"""On a CPU more than a few full windows only cost memory."""

CPU_SHARE: Final = 0.25
"""A CPU's memory belongs to others too, and they come and go."""

CARD_SHARE: Final = 0.95
"""The share of what weights and the largest step leave on a card. The rest is for what no probe
sees: graphs captured later (which take no more than that: `capture.py`), fragments of the
allocator, the driver's own growth."""


@dataclass(frozen=True, slots=True)
class KvDemand:
    """What a worker asks for; lengths in tokens, the rest in bytes.

    `token_bytes` is what one token's keys and values take in all layers, `peak_bytes` what the
    largest step takes besides, `state_bytes` what all recurrent states do. `wanted_tokens` None
    takes what fits; `needs_context`: the configuration names `context_length`, so less is an error
    and not a smaller window.
    """

    token_bytes: int
    block_size: int
    peak_bytes: int
    context_length: int
    needs_context: bool
    wanted_tokens: int | None
    state_bytes: int = 0


def choose_blocks(room: MemoryRoom, demand: KvDemand, *, is_card: bool) -> int:
    """Blocks for `wanted_tokens` (rounded up), else what the room holds: on a CPU at most a few
    windows. Raises `ConfigError` with the bytes that are missing.
    """
    share = _share(demand, is_card=is_card)
    budget = int(share * (room.num_bytes - demand.peak_bytes - demand.state_bytes))
    fitting = max(0, budget // (demand.token_bytes * demand.block_size))
    wanted = _wanted_blocks(demand)
    if wanted > fitting:
        raise ConfigError(_missing(room, demand, wanted, fitting, budget))
    if demand.wanted_tokens is not None:
        return wanted
    if is_card:
        return fitting
    return min(fitting, CPU_CONTEXTS * _blocks(demand, demand.context_length))


def share_of(*, is_card: bool) -> float:
    """The share of what weights and the largest step leave that keys and values may take."""
    return CARD_SHARE if is_card else CPU_SHARE


def _share(demand: KvDemand, *, is_card: bool) -> float:
    if not is_card and demand.wanted_tokens is not None:
        return 1.0
    return share_of(is_card=is_card)


def _wanted_blocks(demand: KvDemand) -> int:
    """At least one, or nothing could run."""
    if demand.wanted_tokens is not None:
        return _blocks(demand, demand.wanted_tokens)
    return _blocks(demand, demand.context_length) if demand.needs_context else 1


def _blocks(demand: KvDemand, tokens: int) -> int:
    return -(-tokens // demand.block_size)


def _missing(room: MemoryRoom, demand: KvDemand, wanted: int, fitting: int, budget: int) -> str:
    block_bytes = demand.token_bytes * demand.block_size
    tokens = fitting * demand.block_size
    if demand.wanted_tokens is not None:
        what, remedy = f"kv_tokens = {demand.wanted_tokens}", "kv_tokens"
    elif demand.needs_context:
        what, remedy = f"context_length = {demand.context_length}", "context_length"
    else:
        what, remedy = "one block of keys and values", ""
    fewer = ", max_seqs or snapshots" if demand.state_bytes else ""
    states = f" and {bytes_text(demand.state_bytes)} for states" if demand.state_bytes else ""
    missing, taken, left, kept, step = map(
        bytes_text,
        (
            wanted * block_bytes - budget,
            wanted * block_bytes,
            room.num_bytes,
            max(0, budget),
            demand.peak_bytes,
        ),
    )
    lowered = f"lower {remedy} to at most {tokens}" if remedy and tokens else "take a smaller model"
    return (
        f"{missing} of memory are missing: {what} takes {taken}, and of the {left} that "
        f"{room.source} leaves, {kept} are for keys and values after {step} for the largest "
        f"step{states}: {lowered}, lower token_budget{fewer}, or end what else runs there"
    )
