"""How fast an engine is at its start, against its last good start.

Owns the record of that start in the user's state directory, and the judgement: an engine that came
back 10 % slower serves as before, so only figures tell. Must not know HTTP or how one measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from config import state_dir
from protocol.errors import ConfigError

SLOWER: Final = 0.9
"""A start under this share of the last good one is warned about."""

_Speed = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class StartSpeed(msgspec.Struct, frozen=True):
    """Tokens per second of one lone request: of its answer, and of its long prompt; 0 is unknown.
    `prompt_tokens` is the length of that prompt.
    """

    decode_tokens_per_s: _Speed = 0.0
    prefill_tokens_per_s: _Speed = 0.0
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


def slower_than(before: StartSpeed, now: StartSpeed) -> Iterator[str]:
    """What of `now` is more than 10 % slower. Prompts are compared at equal lengths only."""
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


def record_path(worker: str, environ: Mapping[str, str]) -> Path:
    """Where the last good start of a worker is kept. Raises `ConfigError` without a home."""
    return state_dir(environ) / "starts" / f"{quote(worker, safe='')}.json"


def compare_and_record(path: Path, now: StartSpeed) -> list[str]:
    """Warnings against the record at `path`; a start without any becomes the record. Blocks.

    A slower one does not: it would be the measure of the next. Removing the file accepts it.
    """
    try:
        before = msgspec.json.decode(path.read_bytes(), type=StartSpeed)
    except FileNotFoundError:
        before = StartSpeed()
    except (OSError, msgspec.MsgspecError) as error:
        # Nothing depends on it but the comparison.
        return [f"the record of the last good start cannot be read: {error}; remove {path}"]
    warnings = [f"{one} (remove {path} to accept it)" for one in slower_than(before, now)]
    if warnings:
        return warnings
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(now))
        new.replace(path)
    except OSError as error:
        return [f"the speed of this start cannot be recorded: {error}"]
    return []


def judged(worker: str, environ: Mapping[str, str], now: StartSpeed) -> list[str]:
    """As `compare_and_record`, for a worker by its name."""
    try:
        path = record_path(worker, environ)
    except ConfigError as error:
        return [f"speeds of starts are not compared: {error}"]
    return compare_and_record(path, now)
