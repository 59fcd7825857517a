"""Models by their hub id.

Owns what is fetched: configuration, tokenizer and template, and the safetensors files that the
index names. Nothing else of a repository is fetched, least of all code. Must not know tensors.
"""

from pathlib import Path
from typing import Any, Final

from huggingface_hub.utils import tqdm

from protocol.errors import ConfigError
from workers.engine.load.checkpoint import INDEX_NAME, SINGLE_NAME, shard_names
from workers.engine.load.report import Report
from workers.hub import fetch
from workers.model_dir import CONFIG_NAME, GENERATION_NAME, MODEL_FILES, POOLING_NAME

_PHASE: Final = "download"
_SMALL_FILES: Final = (*MODEL_FILES, POOLING_NAME, INDEX_NAME)


def fetch_model(model_id: str, report: Report) -> Path:
    """The directory of the hub's model `model_id`, fetched unless the hub's cache has it.

    HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere. Raises
    `ConfigError` if the model cannot be fetched.
    """
    report(_PHASE, 0.0, f"{model_id}: configuration and tokenizer")
    model_dir = _fetch(model_id, None, _SMALL_FILES, report)
    index = model_dir / INDEX_NAME
    weights = shard_names(index) if index.exists() else (SINGLE_NAME,)
    report(_PHASE, 0.0, f"{model_id}: {len(weights)} weight files")
    # The same commit for both: the directory is named after it.
    model_dir = _fetch(model_id, model_dir.name, (*_SMALL_FILES, *weights), report)
    if not (model_dir / weights[0]).exists():
        raise ConfigError(f"{model_id} has no {weights[0]}: only safetensors models can be loaded")
    return model_dir


def fetch_config(model_id: str) -> Path:
    """The directory with the configuration of the hub's model `model_id`, and with nothing that
    the hub's cache did not have. Raises `ConfigError`.
    """
    return _fetch(model_id, None, (CONFIG_NAME, GENERATION_NAME), lambda *_: None)


def _fetch(model_id: str, revision: str | None, names: tuple[str, ...], report: Report) -> Path:
    return fetch(model_id, names, revision, _progress_class(model_id, report))


def _progress_class(model_id: str, report: Report) -> type[Any]:
    """A progress bar that reports instead of drawing; tqdm calls `display` ten times a second."""

    class Progress(tqdm):  # type: ignore[misc] # the library has no types
        def display(self, *_: object, **__: object) -> bool:
            if self.unit == "B" and self.total:
                fraction = min(1.0, self.n / self.total)
                report(_PHASE, fraction, f"{model_id}: {self.n} of {self.total} bytes")
            return True

    return Progress
