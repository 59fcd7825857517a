"""From a worker's configuration to a runner.

Owns the order of a start and what it reports. Must not know how a step is computed.
"""

import re
from pathlib import Path
from typing import Final

import torch

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import EngineFacts
from workers.engine.builtin import PREFIX, builtin_dir
from workers.engine.hub import fetch_model
from workers.engine.kv_cache import KvCache
from workers.engine.kv_size import choose_kv_blocks
from workers.engine.memory import num_processors
from workers.engine.model_config import Qwen3Config, read_model_config
from workers.engine.models.qwen3 import Qwen3
from workers.engine.runner import Runner
from workers.engine.warm_up import warm_up
from workers.engine.weights import Report, load_weights

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_SMALL_BYTES: Final = 64 * 2**20
"""A model whose layers fit into a processor's cache gains nothing from threads, and threads of
several workers that wait for one another by spinning cost each of them most of its speed."""

UNKNOWN_DIGEST: Final = bytes(16)
"""The supervisor, who reads the model's files, fills it in."""


def load_runner(config: WorkerConfig, report: Report) -> Runner:
    """Find the model, load its weights, take memory for keys and values.

    Raises `ConfigError`, one line that names what is wrong and what to do.
    """
    device = _device(config.device)
    model_dir = find_model(config.model, report)
    shape = read_model_config(model_dir)
    dtype = _dtype(config.dtype, shape, device)
    torch.set_num_threads(config.threads or num_processors())
    try:
        weights = load_weights(model_dir, shape, device, dtype, report)
        if config.threads is None and weights.num_bytes() < _SMALL_BYTES:
            torch.set_num_threads(1)
        model = Qwen3(shape, weights)
        report("memory", 0.0, "measuring room for keys and values")
        context = _window(config, shape)
        num_blocks = choose_kv_blocks(config, model, context, dtype)
        cache = KvCache(shape, num_blocks, config.block_size, device, dtype)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{config.model} does not fit into the memory of {device}: take a smaller model, "
            "lower kv_tokens, or end what else runs there"
        ) from error
    report("memory", 1.0, f"{num_blocks * config.block_size} tokens of keys and values")
    runner = Runner(model, cache, _facts(config, device, dtype, context, num_blocks), model_dir)
    report("warm-up", 0.0, "first steps")
    warm_up(runner)
    return runner


def find_model(model: str, report: Report) -> Path:
    """The directory of a built-in name, a directory, or a hub id. Raises `ConfigError`."""
    if model.startswith(PREFIX):
        return builtin_dir(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if _HUB_ID.fullmatch(model):
        return fetch_model(model, report)
    raise ConfigError(
        f"model {model!r} is neither a directory nor a hub id such as Qwen/Qwen3-0.6B"
    )


def _window(config: WorkerConfig, shape: Qwen3Config) -> int:
    largest = shape.max_position_embeddings
    if config.context_length is not None and config.context_length > largest:
        raise ConfigError(
            f"context_length = {config.context_length} is over the window of {config.model}: "
            f"at most {largest}"
        )
    return config.context_length or largest


def _device(name: str) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda:0" if name in ("auto", "cuda") else name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(f"device = {name!r}, but torch finds {count} CUDA devices: try 'cpu'")
    torch.cuda.set_device(device)
    return device


def _dtype(name: str, shape: Qwen3Config, device: torch.device) -> torch.dtype:
    """auto: float32 on the CPU, where 16 bits are slower; the checkpoint's own on CUDA."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else shape.dtype
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not supported: set dtype to one of {list(_DTYPES)}")
    return _DTYPES[name]


def _facts(
    config: WorkerConfig, device: torch.device, dtype: torch.dtype, context: int, num_blocks: int
) -> EngineFacts:
    kv_tokens = num_blocks * config.block_size
    return EngineFacts(
        kind="native",
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        context_length=min(context, kv_tokens),
        block_size=config.block_size,
        kv_tokens=kv_tokens,
        max_seqs=config.max_seqs,
        token_budget=config.token_budget,
        files_digest=UNKNOWN_DIGEST,
    )
