"""The first word of a worker that exists only for a measurement."""

from typing import Final

from protocol.ids import ID_BYTES
from protocol.messages import PROTOCOL_VERSION, EngineFacts, Register

BLOCK_SIZE: Final = 32
FILES_DIGEST: Final = bytes(ID_BYTES)


def hello(name: str, model: str) -> Register:
    """A worker with room for everything, in its first epoch."""
    engine = EngineFacts(
        kind="native",
        device="none",
        dtype="none",
        context_length=131_072,
        block_size=BLOCK_SIZE,
        kv_tokens=100_000_000,
        max_seqs=64,
        token_budget=8192,
        files_digest=FILES_DIGEST,
    )
    return Register(PROTOCOL_VERSION, name, (model,), "bench", "", 1, engine)
