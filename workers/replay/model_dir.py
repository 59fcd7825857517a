"""What an engine without weights must know of a model's directory.

Owns its limits. Must not import torch: such an
engine starts in the time of an interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from config import BUILTIN_PREFIX, WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import EngineFacts
from workers.model_dir import CONFIG_NAME, builtin_dir, read_json

_DEFAULT_CONTEXT: Final = 32_768
_DEFAULT_KV_TOKENS: Final = 1 << 20


def find_model_dir(config: WorkerConfig) -> Path:
    """The directory of `config.model`. Raises `ConfigError` if there is none."""
    if config.model.startswith(BUILTIN_PREFIX):
        return builtin_dir(config.model)
    path = Path(config.model).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"worker `{config.name}`: model {config.model} is no directory; the {config.engine} "
            f"engine needs one with tokenizer.json and config.json, or {BUILTIN_PREFIX}NAME"
        )
    return path


def engine_facts(config: WorkerConfig, model_dir: Path) -> EngineFacts:
    """The limits of `config` within the model's window. Raises `ConfigError`."""
    window = int(
        read_json(model_dir / CONFIG_NAME).get("max_position_embeddings", _DEFAULT_CONTEXT)
    )
    num_blocks = (config.kv_tokens or _DEFAULT_KV_TOKENS) // config.block_size
    if num_blocks == 0:
        raise ConfigError(
            f"worker `{config.name}`: kv_tokens {config.kv_tokens} is less than one block of "
            f"{config.block_size}"
        )
    return EngineFacts(
        kind=config.engine,
        device="none",
        dtype="none",
        context_length=min(config.context_length or config.max_context or window, window),
        block_size=config.block_size,
        kv_tokens=num_blocks * config.block_size,
        max_seqs=config.max_seqs,
        token_budget=config.token_budget,
        files_digest=bytes(16),  # the supervisor, who reads the files, fills it in
    )
