"""The supervisor process: links to gateways, one engine process, restarts, diagnosis; no torch."""

from workers.supervisor.leftovers import make_scratch, owner_of, remove, runtime_dir, sweep

__all__ = [
    "make_scratch",
    "owner_of",
    "remove",
    "runtime_dir",
    "sweep",
]
