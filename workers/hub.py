"""The one call to the model hub's library, and its errors in one line.

Owns the order of places and the words for a failure. Must not know which files a caller needs, nor
import torch: the bridge to a foreign engine fetches a tokenizer by it.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from protocol.errors import ConfigError


def cached(model_id: str, names: tuple[str, ...]) -> Path | None:
    """The snapshot's directory in the hub's cache on this host; None if it has none. No network."""
    try:
        found = snapshot_download(model_id, allow_patterns=list(names), local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return Path(str(found))


def fetch(
    model_id: str,
    names: tuple[str, ...],
    revision: str | None = None,
    progress: type[Any] | None = None,
) -> Path:
    """The snapshot's directory with the files `names` of `model_id`, fetched unless the cache has
    them. `progress` is a class of tqdm. Blocks.

    HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere. Raises
    `ConfigError` if they cannot be fetched.
    """
    try:
        found = snapshot_download(
            model_id, revision=revision, allow_patterns=list(names), tqdm_class=progress
        )
    # The library lets the errors of its HTTP client through, whose package changes by version.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"model {model_id!r} cannot be fetched ({reason}): check the id, the network and "
            "HF_TOKEN, or give a local directory"
        ) from error
    return Path(str(found))
