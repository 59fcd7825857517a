"""TOML text -> `Config`.

Owns strictness: an unknown key names the nearest known one and its line, a wrong type names its
place, references between tables must hold. Must not know what a knob does.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from config.checks import check_config, check_processes
from config.defaults import DEFAULT_PROFILE, Profile, profiles
from config.model import PATTERNS, Config
from protocol.errors import ConfigError

_FIELD = re.compile(r"`\$\.?(?P<path>[^`]*)`")


def load_config(path: Path) -> Config:
    """The configuration in the file `path`. Raises `ConfigError` with one line that names the
    place and the remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: cannot read the configuration: {why}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: the configuration is not UTF-8 text: {error}") from error
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> Config:
    """As `load_config`, from `text`; `source` names it in errors."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    _refuse_unknown_keys(raw, Config, "", text, source)
    _fill_workers(raw, source)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_place(str(error))}") from error
    check_config(config, source)
    return config


def with_gateway(config: Config, source: str, **keys: str | int | None) -> Config:
    """`config` with these keys of `[gateway]`, which came by the command line; None leaves a key
    as it is. Raises `ConfigError` if several processes cannot do the whole.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    gateway = msgspec.structs.replace(config.gateway, **given)
    changed = msgspec.structs.replace(config, gateway=gateway)
    check_processes(changed, source)
    return changed


def _refuse_unknown_keys(
    table: Mapping[str, Any], struct: type[msgspec.Struct], place: str, text: str, source: str
) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in table.items():
        where = f"{place}.{key}" if place else key
        if key not in fields:
            nearest = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean `{nearest[0]}`? " if nearest else ""
            line = _line_of(key, text)
            raise ConfigError(
                f"{source}:{line}: unknown key `{key}` in {_title(place)}; "
                f"{hint}Known: {', '.join(sorted(fields))}"
            )
        inner = _struct_in(fields[key])
        if inner is not None:
            for child_place, child in _children(value, where, keyed=fields[key]):
                _refuse_unknown_keys(child, inner, child_place, text, source)


def _children(value: object, place: str, *, keyed: object) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables in `value`: itself, its items (array of tables) or its values (named tables)."""
    if isinstance(value, list):
        return [(f"{place}[{i}]", item) for i, item in enumerate(value) if isinstance(item, dict)]
    if not isinstance(value, dict):
        return []
    if get_origin(keyed) is dict:
        return [(f"{place}.{k}", item) for k, item in value.items() if isinstance(item, dict)]
    return [(place, value)]


def _struct_in(annotation: object) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for argument in get_args(annotation):
        if (inner := _struct_in(argument)) is not None:
            return inner
    return None


def _line_of(key: str, text: str) -> int:
    pattern = re.compile(rf"^\s*(\[+\s*)?([\w.\"-]+\.)?\"?{re.escape(key)}\"?\s*(=|\]|\.)")
    for number, line in enumerate(text.splitlines(), start=1):
        if pattern.search(line):
            return number
    return 1


def _title(place: str) -> str:
    return f"[{place}]" if place else "the top level"


def _place(message: str) -> str:
    """msgspec's message with `$.workers[0].port` turned into [workers[0].port], and patterns into
    words.
    """
    for pattern, words in PATTERNS.items():
        message = message.replace(f"`str` matching regex {pattern!r}", words)
    return _FIELD.sub(lambda match: f"[{match['path']}]", message)


def _fill_workers(raw: dict[str, Any], source: str) -> None:
    """Give each worker the profile of its model and the gateway of this file, key by key.

    Runs before the types are checked, so it touches only what has the right shape; msgspec names
    the rest.
    """
    models = {_text(model, "name"): model for model in _tables(raw.get("models"))}
    gateway = _tables([raw.get("gateway")])
    bind = next(iter(gateway), {}).get("worker_bind", Config().gateway.worker_bind)
    for worker in _tables(raw.get("workers")):
        if "serves" not in worker and len(models) == 1:
            worker["serves"] = next(iter(models))
        model = models.get(_text(worker, "serves"), {})
        limits = _profile(_text(model, "profile") or DEFAULT_PROFILE, source)
        worker.setdefault("max_seqs", limits.max_seqs)
        worker.setdefault("token_budget", limits.token_budget)
        worker.setdefault("max_context", limits.max_context)
        worker.setdefault("gateways", [bind])


def _profile(name: str, source: str) -> Profile:
    if name not in profiles():
        known = ", ".join(sorted(profiles()))
        raise ConfigError(f"{source}: unknown profile `{name}`; known: {known}")
    return profiles()[name]


def _tables(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) else None
