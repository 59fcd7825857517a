"""The differences between two starts, in words.

Owns the order of the boundaries, from the host to the weights, and the wording of each difference.
Reads no files.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from workers.ipc import StartSpeed
from workers.starts.record import HEADER_BYTES, Library, StartRecord, WeightFile
from workers.starts.withheld import WITHHELD

SLOWER: Final = 0.9
"""A start below this share of the last good one's speed gets a warning."""

_COMMIT_LETTERS: Final = 12
_HASH_LETTERS: Final = 12
_LAUNCH: Final = "launch"
_NOT_OF_THE_ENGINE: Final = frozenset({"--gateway", "--beside-gateway", "--name", "--config"})
"""Words of the command that say where the worker belongs: `herma up` without a file has another
gateway's address at each start, and `herma worker` is not told what `herma up` tells it.
"""
_IN_THE_TABLE: Final = frozenset({"--model", "--serves"})
"""Words of the command whose values the worker's table has too."""


class StartDifference(msgspec.Struct, frozen=True):
    """One difference. `boundary` is its place: host, code, environment, arguments, config,
    libraries, weights or speed.
    """

    boundary: str
    what: str


def differences(before: StartRecord, now: StartRecord) -> list[StartDifference]:
    """The differences, grouped by boundary. Facts that `now` does not have yet are not compared,
    nor the files and the speed of another model.
    """
    is_same = not is_other_model(before, now)
    grouped = {
        "host": _host(before, now),
        "code": _code(before, now),
        "environment": _values(before.environment, now.environment),
        "arguments": _arguments(before, now),
        "config": _config(before.config, now.config),
        "libraries": _libraries(before.libraries, now.libraries),
        "weights": _weights(before, now) if is_same else (),
        "speed": slower_than(before.speed, now.speed) if is_same else (),
    }
    return [
        StartDifference(boundary, what) for boundary, found in grouped.items() for what in found
    ]


def is_other_model(before: StartRecord, now: StartRecord) -> bool:
    """Whether the starts are of two models. The table of a start may be unknown."""
    tables = before.config, now.config
    return all(tables) and before.config.get("model") != now.config.get("model")


def slower_than(before: StartSpeed, now: StartSpeed) -> Iterator[str]:
    """The figures of `now` that are more than 10 % slower. Prompts are compared at equal lengths
    only.
    """
    pairs = [("answers", before.decode_tokens_per_s, now.decode_tokens_per_s)]
    if before.prompt_tokens == now.prompt_tokens:
        what = f"prompts of {now.prompt_tokens} tokens"
        pairs.append((what, before.prefill_tokens_per_s, now.prefill_tokens_per_s))
    for what, old, new in pairs:
        if 0 < new < SLOWER * old:
            yield (
                f"{what} at {new:.1f} tokens/s, {1 - new / old:.0%} slower than the {old:.1f} of "
                "the last good start"
            )


def _host(before: StartRecord, now: StartRecord) -> Iterator[str]:
    yield from _values(
        {"kernel": before.kernel, "driver": before.driver},
        {"kernel": now.kernel, "driver": now.driver},
    )


def _code(before: StartRecord, now: StartRecord) -> Iterator[str]:
    yield from _values(before.versions, now.versions)
    yield from _values(
        {"commit": before.commit[:_COMMIT_LETTERS], "image": before.image},
        {"commit": now.commit[:_COMMIT_LETTERS], "image": now.image},
    )
    if now.engine_version:
        yield from _values({"engine": before.engine_version}, {"engine": now.engine_version})


def _arguments(before: StartRecord, now: StartRecord) -> Iterator[str]:
    """Differences in the worker's command, then in the command of the engine that it launches."""
    has_tables = bool(before.config and now.config)
    old, new = (_own_flags(one.arguments, has_tables) for one in (before, now))
    yield from _values(old, new)
    yield from _values(_launched(before.config), _launched(now.config))


def _own_flags(words: Sequence[str], has_tables: bool) -> dict[str, str]:
    """The flags of the engine, without what the tables say."""
    left_out = _NOT_OF_THE_ENGINE | (_IN_THE_TABLE if has_tables else frozenset())
    return {name: value for name, value in flags_of(words).items() if name not in left_out}


def _launched(config: Mapping[str, Any]) -> dict[str, str]:
    launch = config.get(_LAUNCH) or {}
    return flags_of(launch.get("argv", ()))


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """The values of each flag; words before the first flag belong to "command"."""
    found: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            name, equals, value = word.partition("=")
            found.setdefault(name, []).extend([value] if equals else [])
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) for name, values in found.items()}


def _config(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Differences in the worker's table, and in `launch` except its command, which counts as
    arguments.
    """
    yield from _values(_flat(before), _flat(now))


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    launch = config.get(_LAUNCH) or {}
    flat = {key: _text(value) for key, value in config.items() if key != _LAUNCH}
    flat |= {f"launch.{key}": _text(launch[key]) for key in ("cwd", "stop") if key in launch}
    return flat | {f"launch.env.{name}": value for name, value in launch.get("env", {}).items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _values(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            yield f"{name} is new{_valued(new)}"
        elif new is None:
            yield f"{name} is gone{_valued(old, 'it was ')}"
        else:
            yield f"{name} was {old or 'empty'}, is {new or 'empty'}"


def _valued(value: str | None, before: str = "") -> str:
    return f": {before}{value}" if value and value != WITHHELD else ""


def _libraries(before: Mapping[str, Library], now: Mapping[str, Library]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None and new is not None:
            yield f"{name} is preloaded and was not ({_library(new)})"
        elif new is None:
            yield f"{name} is no longer preloaded"
        elif old is not None:
            yield f"{name} was {_library(old)}, is {_library(new)}"


def _library(one: Library) -> str:
    if not one.sha256:
        return "not there"
    return f"{one.num_bytes:,} bytes, sha256 {one.sha256[:_HASH_LETTERS]}"


def _weights(before: StartRecord, now: StartRecord) -> Iterator[str]:
    if not (before.model_dir and now.model_dir):
        return
    rewritten = []
    for name in sorted(before.weights.keys() | now.weights.keys()):
        old, new = before.weights.get(name), now.weights.get(name)
        if old is None:
            yield f"{name} is new"
        elif new is None:
            yield f"{name} is gone"
        elif old.num_bytes != new.num_bytes:
            yield f"{name} had {old.num_bytes:,} bytes, has {new.num_bytes:,}"
        elif old.header != new.header:
            yield f"{name} has another header"
        elif old.mtime_ns != new.mtime_ns and not _is_whole(name, new):
            rewritten.append(name)
    if rewritten:
        yield _rewritten(rewritten, before.weights[rewritten[0]], now.weights[rewritten[0]])


def _is_whole(name: str, file: WeightFile) -> bool:
    """Whether the header is all of the file: then one of another time is the same file."""
    return file.num_bytes <= HEADER_BYTES and not name.endswith(".safetensors")


def _rewritten(names: Sequence[str], old: WeightFile, new: WeightFile) -> str:
    """What a copy or another checkout of the model looks like: its files in one line."""
    what = f"{names[0]} was" if len(names) == 1 else f"{len(names)} files, as {names[0]}, were"
    return (
        f"{what} written at {_utc(new.mtime_ns)}, before at {_utc(old.mtime_ns)} (--deep compares)"
    )


def _utc(mtime_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(mtime_ns / 1e9))
