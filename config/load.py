"""TOML text -> `Config`.

Owns strictness: each mistake is one line with the file, the line number and the remedy. Must not
know what a key does.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from config.all_mistakes import all_mistakes
from config.builtin_models import DEFAULT_PROFILE, profiles
from config.checks import mistakes, process_mistakes
from config.key_mistakes import type_mistakes
from config.mistakes import Mistake, line_of
from config.places import worker_address
from config.tables import EXTERNAL_ENGINES, Config
from protocol.errors import ConfigError

_AT_LINE: Final = re.compile(r" \(at line (?P<line>\d+), column (?P<column>\d+)\)$")
_OF_BARE_TEXTS: Final = ("Invalid value", "Expected newline or end of document after a statement")
"""The errors of tomllib for a text without quotes: for `host = localhost` and `host =
127.0.0.1`.
"""


def load_config(path: Path) -> Config:
    """The configuration in the file `path`. Raises `ConfigError` with one line that names the
    place and the remedy.
    """
    try:
        text = read_text(path)
    except OSError as error:
        why = str(error.strerror or error)
        if isinstance(error, FileNotFoundError):
            why += "; correct the path, or write the file: herma init"
        elif isinstance(error, IsADirectoryError):
            why += "; name the file in it"
        raise ConfigError(f"{path}: cannot read the configuration: {why}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the configuration is not UTF-8 text: {error}") from error
    return parse_config(text, str(path))


def read_text(path: Path) -> str:
    """The text of a file that people write: without the byte order mark that editors of Windows
    put before it. Raises `OSError` and `UnicodeDecodeError`.
    """
    return path.read_text(encoding="utf-8-sig")


def parse_config(text: str, source: str) -> Config:
    """Like `load_config`, but reads `text`; `source` names it in errors."""
    try:
        return _parse(text, source)
    except RecursionError as error:
        raise ConfigError(f"{source}: the configuration is nested too deeply") from error


def _parse(text: str, source: str) -> Config:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why, line = _toml_error(str(error))
        raise ConfigError(f"{source}{line}: not valid TOML: {why}") from error
    _fill(raw, source)
    _refuse(type_mistakes(raw, Config), text, source)
    config = msgspec.convert(raw, Config)
    _refuse(mistakes(config), text, source)
    return config


def find_mistakes(text: str, source: str) -> list[str]:
    """A line for each mistake in `text`, with the place and the remedy; none if it has none."""
    try:
        found = all_mistakes(text, partial(_fill, source=source), _toml_error)
    except RecursionError:
        return [f"{source}: the configuration is nested too deeply"]
    return [
        f"{source}: {words}" if line is None else f"{source}:{line}: {words}"
        for line, words in found
    ]


def with_gateway(config: Config, source: str, **keys: str | int | None) -> Config:
    """`config` with keys of `[gateway]` from the command line; None leaves a key as it is. Raises
    `ConfigError` if several processes cannot serve the result.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    gateway = msgspec.structs.replace(config.gateway, **given)
    changed = msgspec.structs.replace(config, gateway=gateway)
    for mistake in process_mistakes(changed):
        raise ConfigError(f"{source}: {mistake.text}")
    return changed


def _refuse(found: Iterator[Mistake], text: str, source: str) -> None:
    """Raise `ConfigError` for the first mistake, if there is one."""
    if (mistake := next(found, None)) is not None:
        line = line_of(mistake.place, text)
        place = source if line is None else f"{source}:{line}"
        # A quoted value may have several lines.
        raise ConfigError(f"{place}: {' '.join(mistake.text.splitlines())}")


def _toml_error(message: str) -> tuple[str, str]:
    """The message without its position, and `:LINE`, or "" if it has none."""
    if (match := _AT_LINE.search(message)) is None:
        return message, ""
    words = message[: match.start()]
    hint = "; a text stands in quotes" if words in _OF_BARE_TEXTS else ""
    return f"{words} (column {match['column']}){hint}", f":{match['line']}"


def _fill(raw: dict[str, Any], source: str) -> None:
    """Fill what the file leaves out, first the gateway's address, which is the file's own."""
    gateway = raw.setdefault("gateway", {})
    if isinstance(gateway, dict) and "worker_bind" not in gateway:
        gateway["worker_bind"] = worker_address(source, os.environ)
    _fill_workers(raw)


def _fill_workers(raw: dict[str, Any]) -> None:
    """Fill the missing keys of each worker from its model's profile and this file's gateway.

    Runs before anything is checked, so it skips values of a wrong shape.
    """
    models = {name: model for model in _tables(raw.get("models")) if (name := _text(model, "name"))}
    gateway = next(iter(_tables([raw.get("gateway")])), {})
    bind = _text(gateway, "worker_bind")
    for worker in _tables(raw.get("workers")):
        if "serves" not in worker and len(models) == 1:
            worker["serves"] = next(iter(models))
        model = models.get(_text(worker, "serves") or "", {})
        limits = profiles().get(_text(model, "profile") or "", profiles()[DEFAULT_PROFILE])
        worker.setdefault("token_budget", limits.token_budget)
        if _text(worker, "engine") not in EXTERNAL_ENGINES:  # their steps are their own
            worker.setdefault("max_gap_ms", model.get("max_gap_ms", limits.max_gap_ms))
        worker.setdefault("max_context", limits.max_context)
        _fill_turns(worker, model)
        worker.setdefault("gateways", [bind])
        # People copy the base URL of a client, which ends in /v1.
        if (url := _text(worker, "url")) is not None and url.startswith(("http://", "https://")):
            worker["url"] = url.rstrip("/").removesuffix("/v1")
        if isinstance(is_insecure := gateway.get("insecure_local"), bool):
            worker.setdefault("insecure_local", is_insecure)


def _fill_turns(worker: dict[str, Any], model: Mapping[str, Any]) -> None:
    """A worker takes turns as its model does, unless it says otherwise. One that does not take
    turns never sleeps, so its model's `idle_s` is not its own.
    """
    if "residency" in model:
        worker.setdefault("residency", model["residency"])
    if "idle_s" in model and worker.get("residency", "always") != "always":
        worker.setdefault("idle_s", model["idle_s"])


def _tables(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) else None
