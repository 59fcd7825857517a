"""The ranks of one engine, and what they compute together.

Owns the groups of `torch.distributed` and the choice of how a sum is made. Two ranks add two
numbers, so both get the same bits, whatever the order. Must not know networks, nor who starts the
processes.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.all_reduce import Mail, add_parts, mail_bytes, mail_of, takes
from protocol.errors import ConfigError
from workers.engine.parallel.shares import Share

_STORE: Final = "ranks"
_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

_PATIENCE: Final = timedelta(minutes=10)
"""How long a rank waits for the others. Ranks load side by side, so one that reads its weights
later is waited for; a rank that dies ends the wait at once, because its connection breaks.
"""

_CHECKED_TURNS: Final = 3
"""Sums over peer memory that are checked at the start: each half of a slot is used again."""

_NO_MULTICAST: Final = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Multicast gains nothing for two cards, and a fault in it can take a host's switch out of
service.
"""

_tcp_store = dist.TCPStore  # type: ignore[attr-defined, unused-ignore]
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""torch 2.13 has the first name and warns at the second; older ones have the second."""


class RanksPlace(NamedTuple):
    """Where ranks meet, and how long they wait there for a first sum. `interface` is the network
    interface by which they reach each other, empty: the library's own choice.
    """

    store: Any
    interface: str
    patience: timedelta
    is_one_host: bool

    @classmethod
    def on_host(cls, folder: Path, count: int) -> "RanksPlace":
        """A place in `folder`, which only this user can read. The library would otherwise listen on
        the host's own address.
        """
        store = dist.FileStore(str(folder / _STORE), count)  # type: ignore[attr-defined, unused-ignore]
        return cls(store, "lo", _PATIENCE, is_one_host=True)

    @classmethod
    def between_hosts(cls, host: str, port: int, interface: str, wait_s: float) -> "RanksPlace":
        """At the store of the first rank."""
        patience = timedelta(seconds=wait_s)
        store = _tcp_store(host, port, is_master=False, timeout=patience)
        return cls(store, interface, patience, is_one_host=False)


def open_store(host: str, wait_s: float) -> Any:  # noqa: ANN401 - torch does not name its type
    """The store at which ranks of several hosts meet, on a free `port` of this one."""
    patience = timedelta(seconds=wait_s)
    return _tcp_store(host, 0, is_master=True, timeout=patience, wait_for_workers=False)


class Ranks:
    """This process as rank `share` of an engine, on `device`. All ranks make the same calls in the
    same order.
    """

    def __init__(self, share: Share, place: RanksPlace, device: torch.device) -> None:
        """Meets the other ranks in `place`. Raises `ConfigError` if they cannot reach each other,
        or a first sum is wrong.
        """
        self.share = share
        self.device = device
        if place.interface:
            for name in _INTERFACES:
                os.environ.setdefault(name, place.interface)
        for name, value in _NO_MULTICAST.items():
            os.environ.setdefault(name, value)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        self._mail: Mail | None = None
        try:
            dist.init_process_group(
                backend,
                store=place.store,
                rank=share.index,
                world_size=share.count,
                timeout=place.patience,
            )
            self._check_sum()
        except RuntimeError as error:
            if place.is_one_host:
                raise
            raise ConfigError(
                f"rank {share.index} has met the others and cannot add up with them by the "
                f"interface {place.interface or 'of the library'}: {error}: see that no firewall "
                "is between the hosts, or name the interface in GLOO_SOCKET_IFNAME and "
                "NCCL_SOCKET_IFNAME"
            ) from error
        if not place.is_one_host:
            for made in _backends(device):
                made._set_default_timeout(_PATIENCE)  # noqa: SLF001
        if device.type == "cuda" and place.is_one_host:
            self._mail = self._shared_memory()

    @property
    def way(self) -> str:
        """How small sums are made, for people."""
        return "one kernel over peer memory" if self._mail is not None else dist.get_backend()

    def _shared_memory(self) -> Mail | None:
        """Memory that the cards write to each other; None where they cannot, or where a sum over it
        is wrong. All ranks find the same.
        """
        mail, is_right = None, False
        try:
            mail = _opened(self.share, self.device)
        except (ImportError, RuntimeError) as error:
            _say_that_nccl_sums(error)
        if not self.agreed(mail is not None) or mail is None:
            return None
        try:
            is_right = self._adds_right(mail)
        except RuntimeError as error:
            _say_that_nccl_sums(error)
        return mail if self.agreed(is_right) else None

    def _adds_right(self, mail: Mail) -> bool:
        part = torch.arange(64, dtype=torch.bfloat16, device=self.device)
        expected = [self.share.count * number for number in range(64)]
        sums = [add_parts(part, None, mail, is_trial=True).tolist() for _ in range(_CHECKED_TURNS)]
        return sums == [expected] * _CHECKED_TURNS

    def _check_sum(self) -> None:
        """A first sum, which opens the connections between the ranks: none may open in a capture.
        Raises `ConfigError`.
        """
        found = self.add(torch.full((1,), float(self.share.index + 1), device=self.device))
        wanted = self.share.count * (self.share.count + 1) / 2
        if found.item() != wanted:
            raise ConfigError(
                f"the sum of {self.share.count} ranks is {found.item()}, not {wanted}: their "
                "connection is faulty; `herma doctor` looks at it, tensor_parallel = 1 does without"
            )

    def add(self, part: Tensor, residual: Tensor | None = None) -> Tensor:
        """The sum of all ranks' parts and a residual, which all of them have; `part` is contiguous,
        and may be overwritten.
        """
        if self._mail is not None and takes(part):
            return add_parts(part, residual, self._mail)
        dist.all_reduce(part)
        return part if residual is None else part.add_(residual)

    def joined(self, part: Tensor) -> Tensor:
        """The columns [S, count N] of all ranks, each of which has [S, N] of them."""
        num_rows, width = part.shape
        count = self.share.count
        found = torch.empty(count * num_rows, width, dtype=part.dtype, device=part.device)
        _gather(found, part.contiguous())
        return found.view(count, num_rows, width).transpose(0, 1).reshape(num_rows, count * width)

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers, which all of them go on with."""
        held = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held.item())

    def agreed(self, is_so: bool) -> bool:
        """Whether `is_so` is true on all ranks."""
        return bool(self.least(int(is_so)))

    def close(self) -> None:
        """Leave the others."""
        dist.destroy_process_group()


def _backends(device: torch.device) -> list[Any]:
    """Torch's own objects for sums, which keep the timeout of the start."""
    kinds = ("cpu",) if device.type == "cpu" else ("cpu", "cuda")
    return [_world()._get_backend(torch.device(kind)) for kind in kinds]  # noqa: SLF001


def _say_that_nccl_sums(error: Exception) -> None:
    print(f"cards do not share memory, NCCL sums: {error}", file=sys.stderr)


def _opened(share: Share, device: torch.device) -> Mail:
    from torch.distributed import _symmetric_memory as shared  # noqa: PLC0415 - cards only

    memory = shared.empty(mail_bytes(share.count), dtype=torch.uint8, device=device)
    handle = shared.rendezvous(memory, _world())
    memory.zero_()
    torch.cuda.synchronize(device)  # before the others write; `agreed` waits for all
    return mail_of(memory, handle.buffer_ptrs, share.index)


def _world() -> dist.ProcessGroup:
    found = dist.group.WORLD
    assert found is not None  # this process has joined it
    return found
