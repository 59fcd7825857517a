"""Who a worker says it is.

Owns that value and the hash that shows whether two workers run the same configuration. Must not
know sockets.
"""

from dataclasses import dataclass

import msgspec
import xxhash

from config import WorkerConfig


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The lasting part of `Register`."""

    worker: str
    models: tuple[str, ...]
    build: str
    config_hash: str


def worker_identity(config: WorkerConfig, build: str) -> WorkerIdentity:
    """The identity of the worker of `config`; secrets are file names there, never values."""
    encoded = msgspec.json.encode(config, order="deterministic")
    return WorkerIdentity(
        worker=config.name,
        models=(config.serves,),
        build=build,
        config_hash=xxhash.xxh3_64_hexdigest(encoded),
    )
