"""How the ranks of an engine start: each on its card, all at the same time.

Owns the device of each rank and the order of a start. Must not know the network.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.engine.load.checkpoint import Report
from workers.engine.parallel.leader import Followers, LeadingRunner
from workers.engine.parallel.ranks import Ranks
from workers.engine.parallel.shares import Share
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner


def load_leading(
    config: WorkerConfig, report: Report, part: Callable[[str], NoReturn]
) -> LeadingRunner:
    """Start the other ranks and load this process as the first. `part` ends this process with a
    cause, from any thread. Raises `ConfigError`.
    """
    followers = Followers(config, part)
    own = _config_of_rank(config, 0)
    ranks = _met(own, 0, followers.folder)
    followers.all_met()
    return LeadingRunner(load_runner(own, report, ranks=ranks), followers, part)


def load_following(config: WorkerConfig, index: int, folder: Path) -> ModelRunner:
    """Load this process as rank `index`, which meets the others in `folder`. The first rank reports
    the start. Raises `ConfigError`.
    """
    own = _config_of_rank(config, index)
    return load_runner(own, lambda *_: None, ranks=_met(own, index, folder))


def _config_of_rank(config: WorkerConfig, index: int) -> WorkerConfig:
    """The configuration with the device of rank `index`; the CPU on a host without cards, unless
    `devices` names some.
    """
    has_device = bool(config.devices) or torch.cuda.is_available()
    device = config.rank_devices[index] if has_device else "cpu"
    return msgspec.structs.replace(config, device=device)


def _met(config: WorkerConfig, index: int, folder: Path) -> Ranks:
    """The ranks, on the device of `config`. Raises `ConfigError` if there is no such card."""
    device = torch.device(config.device)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(
                f"rank {index} would take {device}, but torch finds {count} CUDA devices: lower "
                "tensor_parallel, or name the cards in `devices`"
            )
        torch.cuda.set_device(device)
    return Ranks(Share(index, config.tensor_parallel), folder, device)
