"""The start of an engine: from a worker's configuration to a runner.

Owns the order of a start and what it reports. Must not know how weights are read, how memory is
divided, nor how a step is computed.
"""

from typing import Final

import torch

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.engine.compile.compile_ahead import CompileAhead
from workers.engine.compile.kernel_cache import hash_compiler, watch_kernel_cache
from workers.engine.division import Division, divide
from workers.engine.load.report import Report, phase_of
from workers.engine.memory.budget import num_processors
from workers.engine.memory.out_of_memory import is_of_host, is_out_of_memory, shortage
from workers.engine.model_source import ModelSource, find_model
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.parallel.ranks import Ranks
from workers.engine.runner import DraftingSetup, ModelRunner, steps_on
from workers.engine.settings import engine_facts, kv_dtype, window
from workers.engine.sleep.choice import sleep_of
from workers.engine.sleep.device_sleep import DeviceSleep, NoSleep
from workers.engine.tier.sizing import open_tier
from workers.engine.warm_up import warm_up

_SMALL_BYTES: Final = 64 * 2**20
"""A smaller model runs in one thread by default: its layers fit into a processor's cache, so
threads gain nothing, and spinning threads of several workers cost each most of its speed.
"""


def load_runner(
    config: WorkerConfig,
    report: Report,
    ahead: CompileAhead | None = None,
    ranks: Ranks | None = None,
    cache_fd: int | None = None,
) -> ModelRunner:
    """Find the model, load its weights, take memory for keys and values, warm up.

    `ahead` compiles kernels for the start. With `ranks` this process loads its share of the model,
    and all ranks load at the same time, because the first steps are theirs together. `cache_fd` is
    the supervisor's region of host memory. Raises `ConfigError`, one line that says what is wrong
    and what to do.
    """
    with phase_of(report, "device", config.device):
        if config.device != "cpu" and torch.cuda.is_available():
            hash_compiler()
        device = _device(config.device)
        kernels = watch_kernel_cache() if device.type == "cuda" else None
        if ahead is not None:
            if device.type == "cuda":
                ahead.watch()
            else:
                ahead.stop()
    model_dir = find_model(config.model, report)
    if ahead is not None:
        ahead.model_is_at(model_dir)
    source = ModelSource.of(config, model_dir, device, ranks)
    torch.set_num_threads(config.threads or num_processors())
    try:
        model, sleep = _load(source, report)
        division = divide(source, model, report, sleep.num_bytes)
        source.drafter_sleeps_with(sleep, model, division.drafter)
        cache = _take_caches(config, model, division)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(_does_not_fit(config, device, error)) from error
    tokens = division.blocks.num_blocks * config.block_size
    with phase_of(report, "warm-up", f"first steps, {tokens} tokens of keys and values"):
        runner = _runner(source, model, division, cache)
        runner.sleep = sleep
        open_tier(config, runner, cache_fd, report)
        warm_up(runner)
    if kernels is not None:
        texts = [kernels.summary()] + ([] if ahead is None else [ahead.summary()])
        report("warm-up", 1.0, f"kernels: {'; '.join(texts)}")
    return runner


def _load(source: ModelSource, report: Report) -> tuple[Network, DeviceSleep | NoSleep]:
    """The network, with its weights on the device, and how they sleep."""
    config, weights = source.config, source.load(report)
    if config.threads is None and weights.num_bytes() < _SMALL_BYTES:
        torch.set_num_threads(1)
    sleep = sleep_of(config, source.device, has_ranks=source.ranks is not None)
    source.sleep_with(sleep, weights)
    model = Network(
        source.own_shape,
        weights,
        window(config, source.shape),
        invariant=config.invariant,
        ranks=source.ranks,
        place=sleep.place,
    )
    return model, sleep


def _take_caches(config: WorkerConfig, model: Network, division: Division) -> KvCache:
    """The memory for keys and values, of a drafter too."""
    num_blocks, windows = division.blocks.num_blocks, division.blocks.windows
    dtype = kv_dtype(config, model.weights.embedding.dtype)
    in_windows = 0 if windows is None else windows.sizes.num_blocks
    cache = KvCache(
        model.config, num_blocks, config.block_size, model.device, dtype, in_windows, model.place
    )
    if division.drafter is not None:
        division.drafter.take_cache(num_blocks + 1, config.block_size)
    return cache


def _runner(source: ModelSource, model: Network, division: Division, cache: KvCache) -> ModelRunner:
    config, blocks = source.config, division.blocks
    context = window(config, source.shape)
    facts = engine_facts(config, model, context, blocks.num_blocks, *division.limits(config))
    drafting = DraftingSetup(config.drafting is not None, division.drafter)
    steps = steps_on(model, cache, facts, blocks.passing_bytes, drafting)
    return ModelRunner(
        model, cache, facts, source.model_dir, steps, blocks.largest, verifies=drafting.is_on
    )


def _does_not_fit(config: WorkerConfig, device: torch.device, error: BaseException) -> str:
    """The error that names the memory that is too small: a worker on a card needs memory of the
    host too.
    """
    model = config.model
    if device.type == "cuda" and is_of_host(error):
        return (
            f"{model} does not fit into the memory of the host beside its card ({shortage(error)}):"
            ' lower host_bytes, leave out embedding = "host", or end what else runs there'
        )
    name = "the host" if is_of_host(error) else device
    return (
        f"{model} does not fit into the memory of {name}: take a smaller model, "
        "lower token_budget or kv_tokens, or end what else runs there"
    )


def _device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda:0" if name in ("auto", "cuda") else name)
    if torch.version.cuda is None:
        raise ConfigError(
            f"device = {name!r}, but torch {torch.__version__} is built without CUDA: install a "
            "build with it, or take device = 'cpu'"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(
            f"device = {name!r}, but torch finds {count} CUDA devices: `herma doctor` looks for "
            "the cause; device = 'cpu' does without"
        )
    torch.cuda.set_device(device)
    return device
