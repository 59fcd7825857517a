"""The ranks of one engine, and what they compute together.

Owns the groups of `torch.distributed` and the choice of how a sum is made. Two ranks add two
numbers, so both get the same bits, whatever the order. Must not know networks, nor who starts the
processes.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from protocol.errors import ConfigError
from workers.engine.parallel.shares import Share

_STORE: Final = "ranks"
_PATIENCE: Final = timedelta(minutes=10)
"""How long a rank waits for the others. Ranks load side by side, so one that reads its weights
later is waited for; a rank that dies ends the wait at once, because its connection breaks.
"""


class Ranks:
    """This process as rank `share` of an engine, on `device`. All ranks make the same calls in the
    same order.
    """

    def __init__(self, share: Share, folder: Path, device: torch.device) -> None:
        """Meets the other ranks in `folder`, which only this user can read. Raises `ConfigError`
        if the cards cannot reach each other.
        """
        self.share = share
        self.device = device
        # Ranks of one host: the library would otherwise listen on the host's own address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(folder / _STORE), share.count),  # type: ignore[attr-defined]
            rank=share.index,
            world_size=share.count,
            timeout=_PATIENCE,
        )
        if device.type == "cuda":
            self._check_cards()

    def _check_cards(self) -> None:
        """A first sum, which opens the connections between the cards: none may open in a capture.
        Raises `ConfigError`.
        """
        found = self.add(torch.full((1,), float(self.share.index + 1), device=self.device))
        wanted = self.share.count * (self.share.count + 1) / 2
        if found.item() != wanted:
            raise ConfigError(
                f"the sum of {self.share.count} cards is {found.item()}, not {wanted}: their "
                "connection is faulty; `herma doctor` looks at it, tensor_parallel = 1 does without"
            )

    def add(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place of this one's; contiguous."""
        dist.all_reduce(part)
        return part

    def joined(self, part: Tensor) -> Tensor:
        """The columns [S, count N] of all ranks, each of which has [S, N] of them."""
        num_rows, width = part.shape
        count = self.share.count
        found = torch.empty(count * num_rows, width, dtype=part.dtype, device=part.device)
        dist.all_gather_into_tensor(found, part.contiguous())
        return found.view(count, num_rows, width).transpose(0, 1).reshape(num_rows, count * width)

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers, which all of them go on with."""
        held = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held.item())

    def agreed(self, is_so: bool) -> bool:
        """Whether it is so on all ranks."""
        return bool(self.least(int(is_so)))

    def close(self) -> None:
        """Leave the others."""
        dist.destroy_process_group()
