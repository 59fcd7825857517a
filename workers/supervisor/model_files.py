"""Reading a model's text files.

Owns the disk access, in a thread, and its errors. Must not know who asks.
"""

from dataclasses import dataclass
from pathlib import Path

import trio

from protocol.errors import ConfigError
from workers.ipc import MAX_MODEL_FILES_BYTES, MODEL_FILES, files_digest


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Contents by name, and their digest."""

    digest: bytes
    files: dict[str, bytes]


async def read_model_files(model_dir: Path) -> ModelFiles:
    """The text files of the model in `model_dir`, those that it has.

    Raises `ConfigError` for a missing tokenizer.json, unreadable files or more than 32 MiB.
    """
    return await trio.to_thread.run_sync(_read, model_dir)


def _read(model_dir: Path) -> ModelFiles:
    files: dict[str, bytes] = {}
    for name in MODEL_FILES:
        path = model_dir / name
        try:
            files[name] = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if "tokenizer.json" not in files:
        raise ConfigError(f"{model_dir} has no tokenizer.json; gateways cannot tokenise for it")
    if (num_bytes := sum(map(len, files.values()))) > MAX_MODEL_FILES_BYTES:
        raise ConfigError(
            f"the text files in {model_dir} have {num_bytes} bytes; "
            f"{MAX_MODEL_FILES_BYTES} are the limit"
        )
    return ModelFiles(files_digest(files), files)
