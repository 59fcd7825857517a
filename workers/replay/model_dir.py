"""What an engine without weights must know of a model's directory.

Owns reading config.json, generation_config.json and tokenizer.json. Must not import torch: such an
engine starts in the time of an interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from config import BUILTIN_PREFIX, WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import EngineFacts
from workers.loop import builtin_dir

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
    window = int(_config(model_dir).get("max_position_embeddings", _DEFAULT_CONTEXT))
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


def read_vocab_size(model_dir: Path) -> int | None:
    """The ids that the model can embed, if its config.json says so."""
    size = _config(model_dir).get("vocab_size")
    return size if isinstance(size, int) and size > 0 else None


def read_eos_ids(model_dir: Path) -> tuple[int, ...]:
    """The ids that end an answer, the usual one first; none if the files name none."""
    path = model_dir / "generation_config.json"
    named = read_json(path).get("eos_token_id") if path.is_file() else None
    ids = named if named is not None else _config(model_dir).get("eos_token_id")
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `ConfigError` for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value


def _config(model_dir: Path) -> dict[str, Any]:
    return read_json(model_dir / "config.json")
