"""Public model names, their aliases and what is known about each.

Owns the names: those of the configuration and those that workers bring. Must not know who runs
what at the moment: `fleet.py` does.
"""

from dataclasses import dataclass
from typing import Literal

from config import FallbackConfig

ModelState = Literal["ready", "starting", "down"]


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as clients and turns see it. `context_length` (tokens) is the least of the ready
    workers, else the last known, else the configured one. `files_digest` and `block_size` are
    None until a worker was ready once. `progress` tells how far a start is, in words.
    """

    name: str
    aliases: tuple[str, ...]
    context_length: int | None
    state: ModelState
    files_digest: bytes | None
    block_size: int | None
    fallback: tuple[FallbackConfig, ...]
    cloud: bool
    ready_workers: int = 0
    queued: int = 0
    progress: str = ""
