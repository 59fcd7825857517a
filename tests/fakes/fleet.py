"""Registrations, prompts and requests for tests of the fleet state.

Owns short ways to say them. Prompts are made of named parts, so that shared prefixes are visible
in the test; their digests are real ones.
"""

from collections.abc import Sequence
from typing import TypeVar

import xxhash

from config import FallbackConfig, ModelConfig
from gateway.routing.effects import Assign, Effect, Effects, RouteRequest
from gateway.routing.fleet_state import FleetState
from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    BlocksSnapshot,
    BlocksStored,
    EngineFacts,
    Load,
    Register,
)

_E = TypeVar("_E", bound=Effect)
BLOCK = 32
CLOUD = (FallbackConfig(provider="cloud", model="big"),)
W1, W2, W3 = (WorkerId(bytes([n]) * 16) for n in (1, 2, 3))


def facts(
    *,
    max_seqs: int = 4,
    kv_tokens: int = 1_000_000,
    context_length: int = 131_072,
    block_size: int = BLOCK,
    files: bytes = b"f" * 16,
) -> EngineFacts:
    """A running engine."""
    return EngineFacts(
        kind="native",
        device="cpu",
        dtype="float32",
        context_length=context_length,
        block_size=block_size,
        kv_tokens=kv_tokens,
        max_seqs=max_seqs,
        token_budget=4096,
        files_digest=files,
    )


def hello(
    name: str,
    engine: EngineFacts | None = None,
    *,
    models: tuple[str, ...] = ("m",),
    epoch: int = 1,
    version: int = PROTOCOL_VERSION,
) -> Register:
    """A worker's `Register`; without `engine` it is starting."""
    return Register(
        protocol_version=version,
        worker=name,
        models=models,
        build="test",
        config_hash="",
        epoch=epoch,
        engine=engine,
    )


def load(
    *,
    running: int = 0,
    waiting: int = 0,
    rate: float = 10_000.0,
    step_ms: float = 20.0,
    epoch: int = 1,
    places: int = 0,
) -> Load:
    """An engine's counters."""
    return Load(
        epoch=epoch,
        running=running,
        waiting=waiting,
        free_blocks=0,
        num_blocks=0,
        steps=0,
        preemptions=0,
        step_ms=step_ms,
        prefill_tokens_per_s=rate,
        places=places,
    )


def chain(*parts: tuple[str, int]) -> tuple[BlockDigest, ...]:
    """Digests of a prompt made of named parts of so many blocks each."""
    blocks = [f"{name}:{index}" for name, num_blocks in parts for index in range(num_blocks)]
    packed = b"".join([xxhash.xxh3_64_digest(block.encode()) for block in blocks])
    # Eight bytes each: two tokens.
    return tuple(block_digests(root_digest("m"), packed, 2))


def request(
    ticket: int,
    digests: Sequence[BlockDigest] = (),
    *,
    model: str = "m",
    key: str = "k",
    weight: float = 1.0,
    session: str | None = None,
    tail: int = 8,
    max_tokens: int = 100,
    auxiliary: bool = False,
    cloud: bool = True,
    deadline_at: float | None = None,
    excluded: frozenset[WorkerId] = frozenset(),
    resumed: bool = False,
    prefer: WorkerId | None = None,
    fingerprint: bytes = b"",
    num_sequences: int = 1,
) -> RouteRequest:
    """A prompt of these blocks and `tail` tokens more."""
    return RouteRequest(
        ticket=ticket,
        model=model,
        key=key,
        weight=weight,
        session=session,
        digests=tuple(digests),
        prompt_tokens=len(digests) * BLOCK + tail,
        max_tokens=max_tokens,
        auxiliary=auxiliary,
        cloud=cloud,
        deadline_at=deadline_at,
        excluded=excluded,
        resumed=resumed,
        prefer=prefer,
        fingerprint=fingerprint,
        num_sequences=num_sequences,
    )


def dispatch(
    *workers: tuple[WorkerId, EngineFacts],
    fallback: tuple[FallbackConfig, ...] = (),
    max_queue: int | None = 8,
    resume_wait_s: float = 120.0,
    rejoin_s: float = 0.0,
) -> FleetState:
    """A dispatch for the model `m` with these ready workers, called w1, w2, ..."""
    config = ModelConfig(name="m", aliases=("alias",), fallback=fallback)
    fleet = FleetState(
        (config,), max_queue=max_queue, resume_wait_s=resume_wait_s, rejoin_s=rejoin_s
    )
    for number, (worker_id, engine) in enumerate(workers, start=1):
        fleet.register(worker_id, hello(f"w{number}", engine), 0.0)
        fleet.heard(worker_id, BlocksSnapshot(seq=0, digests=b""), 0.0)
    return fleet


def stored(seq: int, digests: Sequence[BlockDigest]) -> BlocksStored:
    """An engine's event."""
    return BlocksStored(seq=seq, digests=b"".join(digests))


def placed(effects: Effects) -> dict[int, WorkerId]:
    """Where tickets were assigned."""
    return {e.ticket: e.worker_id for e in effects if isinstance(e, Assign)}


def only(effects: Effects, kind: type[_E]) -> _E:
    """The one effect of that kind."""
    (effect,) = [effect for effect in effects if isinstance(effect, kind)]
    return effect
