"""Tests whether several ranks on this host can add numbers together: `python collectives.py RANKS`.

Runs in the environment of a version, so it imports nothing of Herma. With CUDA each rank has a card
and NCCL, else they use gloo. Prints one line. The status is 0 if the sums are right, 3 if a card's
memory is full, which proves nothing, else 1.
"""

import os
import socket
import sys
import tempfile
from typing import Any

FULL = 3
TIMEOUT_S = 60


def main() -> int:
    """Start the ranks and wait for them."""
    import torch

    wanted = int(sys.argv[1])
    is_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= wanted
    backend = "nccl" if is_cuda else "gloo"
    # Ranks on one host meet over loopback, unless the operator has set another interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ranks: Any = torch.multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        try:
            ranks.spawn(_rank, (wanted, backend, folder), nprocs=wanted)
        except (ranks.ProcessRaisedException, ranks.ProcessExitedException) as error:
            text = str(error).strip().splitlines()[-1]
            print(f"{backend}, {wanted} ranks on {socket.gethostname()}: {text}")
            return FULL if "out of memory" in str(error) else 1
    print(f"{backend}: {wanted} ranks agree, torch {torch.__version__}")
    return 0


def _rank(rank: int, ranks: int, backend: str, folder: str) -> None:
    from datetime import timedelta

    import torch
    from torch import distributed

    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    numbers = torch.arange(1024, dtype=torch.float32, device=device) + rank
    distributed.all_reduce(numbers)
    expected = ranks * torch.arange(1024, dtype=torch.float32) + ranks * (ranks - 1) / 2
    if not torch.equal(numbers.cpu(), expected):
        raise RuntimeError("the sums are wrong")
    distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
