"""How the ranks of an engine start: each on its card, all at the same time.

Owns the device of each rank, what ranks of several hosts must have alike, and the order of a start.
Must not know the network.
"""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import torch

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.version import VERSION
from workers.engine.load.report import Report
from workers.engine.model_source import find_model
from workers.engine.parallel.calls import CallChannel
from workers.engine.parallel.following import follow
from workers.engine.parallel.leader import DistantRanks, Followers, LeadingRunner
from workers.engine.parallel.processes import RankProcesses
from workers.engine.parallel.ranks import Ranks, RanksPlace, open_store
from workers.engine.parallel.rendezvous import (
    MeetingPoint,
    RankHello,
    dial,
    gather,
    interface_of,
    listen,
    welcome,
)
from workers.engine.parallel.shares import Share
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import CONFIG_NAME

_COMPARED: Final = (
    "dtype", "quantization", "kv_dtype", "head", "prefill", "invariant", "token_budget",
    "kv_tokens", "max_seqs", "snapshots", "context_length", "max_context", "block_size",
    "tensor_parallel", "speculation", "cache", "host_bytes",
)  # fmt: skip
"""Keys of a worker that must be alike on all hosts."""


MEET_S: Final = 120.0
"""How long ranks of several hosts wait for each other: supervisors start them together, and one may
read torch from a slow disk first. The first sum gets as long again.
"""


def load_leading(
    config: WorkerConfig,
    report: Report,
    part: Callable[[str], NoReturn],
    wait_s: float = MEET_S,
    processes: RankProcesses | None = None,
) -> LeadingRunner:
    """Meet the other ranks, and load this process as the first. Starts the other ranks of this host
    unless their `processes` are given. `part` ends this process with a cause, from any thread.
    Raises `ConfigError`, and `RankAbsent` if a rank of another host does not come within `wait_s`.
    """
    if config.group is not None:
        return _lead_hosts(config, report, part, wait_s)
    followers = Followers(processes or RankProcesses(config), part)
    own = _config_of_rank(config, 0)
    ranks = _met(own, 0, RanksPlace.on_host(followers.folder, own.tensor_parallel))
    followers.all_met()
    return LeadingRunner(load_runner(own, report, ranks=ranks), followers, part)


def load_following(config: WorkerConfig, index: int, folder: Path) -> ModelRunner:
    """Load this process as rank `index`, which meets the others in `folder`. The first rank reports
    the start. Raises `ConfigError`.
    """
    own = _config_of_rank(config, index)
    place = RanksPlace.on_host(folder, own.tensor_parallel)
    return load_runner(own, lambda *_: None, ranks=_met(own, index, place))


def follow_host(config: WorkerConfig, report: Report, wait_s: float = MEET_S) -> None:
    """Meet the first rank on its host, load this process as another rank, and follow the first to
    its end. Raises `ConfigError`, and `RankAbsent` if there is no first rank.
    """
    own, address = _with_device(config), _address(config)
    report("ranks", 0.0, f"rank 0 at {address}")
    met = dial(address, _hello(own, find_model(own.model, report)), wait_s)
    (connection,) = met.connections
    interface = interface_of(connection)
    place = RanksPlace.between_hosts(address.host, met.store_port, interface, wait_s)
    runner = load_runner(own, report, ranks=_met(own, own.rank, place))
    follow(runner, CallChannel(connection))


def _lead_hosts(
    config: WorkerConfig,
    report: Report,
    part: Callable[[str], NoReturn],
    wait_s: float,
) -> LeadingRunner:
    own, address = _with_device(config), _address(config)
    hello = _hello(own, find_model(own.model, report))
    with listen(address) as listener:
        report("ranks", 0.0, f"{own.ranks - 1} others at {address}")
        connections = gather(listener, hello, wait_s)
    store = open_store(address.host, wait_s)
    peers = [str(connection.getpeername()[0]) for connection in connections]
    met = welcome(connections, store.port)
    others = DistantRanks([CallChannel(each) for each in met.connections], peers, part)
    others.watch()
    place = RanksPlace(
        store, interface_of(connections[0]), timedelta(seconds=wait_s), is_one_host=False
    )
    ranks = _met(own, 0, place)
    return LeadingRunner(load_runner(own, report, ranks=ranks), others, part)


def _address(config: WorkerConfig) -> MeetingPoint:
    assert config.rendezvous is not None  # checked: a group of this engine has an address
    return MeetingPoint.of(config.rendezvous)


def _with_device(config: WorkerConfig) -> WorkerConfig:
    """The configuration with this host's device by name."""
    if config.device != "auto":
        return config
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    return msgspec.structs.replace(config, device=device)


def _hello(config: WorkerConfig, model_dir: Path) -> RankHello:
    """What this rank says of itself: all that decides what it computes."""
    assert config.group is not None
    facts = {key: str(getattr(config, key)) for key in _COMPARED}
    facts |= {
        "herma": VERSION,
        "torch": str(torch.__version__),
        "kind of device": torch.device(config.device).type,
        "config.json": hashlib.sha256((model_dir / CONFIG_NAME).read_bytes()).hexdigest()[:12],
    }
    return RankHello(config.group, config.rank, config.ranks, facts)


def _config_of_rank(config: WorkerConfig, index: int) -> WorkerConfig:
    """The configuration with the device of rank `index`; the CPU on a host without cards, unless
    `devices` names some.
    """
    has_device = bool(config.devices) or torch.cuda.is_available()
    device = config.rank_devices[index] if has_device else "cpu"
    return msgspec.structs.replace(config, device=device)


def _met(config: WorkerConfig, index: int, place: RanksPlace) -> Ranks:
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
    return Ranks(Share(index, config.tensor_parallel), place, device)
