"""The window of a text engine that names none: that of its model.

Owns where the model's config.json is looked for: in the directory that `model` names, else in this
host's cache of the hub; nothing is fetched. What is found is the most that the model can take; its
engine may have room for less, so it is said once. Must not know engines.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from config import TEXT_ENGINE, WorkerConfig, is_hub_id
from protocol.errors import ConfigError
from workers.external import EngineLimits
from workers.model_dir import read_json

_FILE: Final = "config.json"
_NAMES: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_PARTS: Final = ("text_config", "llm_config", "language_config")
"""Tables of a model with several parts that describe the one of text."""

_log = logging.getLogger(__name__)


def with_models_window(config: WorkerConfig, limits: EngineLimits) -> EngineLimits:
    """`limits` with the window of the model, if neither the engine nor the configuration has one
    and the model's file is here. Blocks.
    """
    has_window = limits.context_length is not None or config.context_length is not None
    if has_window or config.engine != TEXT_ENGINE:
        return limits
    path = _file_of(config.model)
    window = None if path is None else _window_in(path)
    if window is None:
        return limits
    _log.warning(
        "the engine at %s does not say how long its window is: taking the %d tokens of %s; if it "
        "has room for less, write `context_length` into the table of worker %s",
        config.url,
        window,
        path,
        config.name,
    )
    return replace(limits, context_length=window)


def _file_of(model: str) -> Path | None:
    path = Path(model).expanduser()
    if path.is_dir():
        return path / _FILE
    if not is_hub_id(model):
        return None
    from workers.hub import cached  # noqa: PLC0415 -- half a second, and most engines say theirs

    found = cached(model, (_FILE,))
    return None if found is None else found / _FILE


def _window_in(path: Path) -> int | None:
    try:
        file = read_json(path) if path.exists() else {}
    except ConfigError as error:
        _log.warning("%s", error)
        return None
    tables: list[Any] = [file.get(name) for name in _PARTS]
    for table in (*tables, file):
        for name in _NAMES if isinstance(table, dict) else ():
            value = table.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
