"""How a rank finds its card and its peers.

Owns the device of each rank. Must not know the network.
"""

from pathlib import Path

import msgspec
import torch

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.engine.parallel.ranks import Ranks
from workers.engine.parallel.shares import Share


def config_of_rank(config: WorkerConfig, index: int) -> WorkerConfig:
    """The configuration with the device of rank `index`: that of `devices`, else card `index`."""
    if config.devices:
        device = config.devices[index]
    elif config.device == "cpu" or not torch.cuda.is_available():
        device = "cpu"
    else:
        device = f"cuda:{index}"
    return msgspec.structs.replace(config, device=device)


def rank_of(config: WorkerConfig, index: int, folder: Path) -> Ranks:
    """Meet the other ranks in `folder`. Raises `ConfigError` if there is no such card."""
    device = torch.device(config_of_rank(config, index).device)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(
                f"rank {index} would take {device}, but torch finds {count} CUDA devices: lower "
                "tensor_parallel, or name the cards in `devices`"
            )
        torch.cuda.set_device(device)
    return Ranks(Share(index, config.tensor_parallel), folder, device)
