"""The supervisor process: links to gateways, one engine process, restarts, diagnosis; no torch."""

from workers.supervisor.leftovers import make_scratch, remove, runtime_dir, sweep

__all__ = [
    "make_scratch",
    "remove",
    "runtime_dir",
    "sweep",
]
