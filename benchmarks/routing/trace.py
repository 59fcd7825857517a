"""Request traces in the Mooncake format, one JSON object a line.

Owns the turn and the strict parsing of a file. Blocks are named by the chained digests of the
gateway and the engines, so equal ids match only where all ids before them match. Must not know
workers or policies.

`timestamp` (ms), `input_length` and `output_length` (tokens) and `hash_ids` (one per block of 512
prompt tokens, the last one may be partial) are the format of kvcache-ai/Mooncake; `session_id` and
`pause_ms` are optional: a turn of a session arrives at its timestamp, but not before the end of the
previous one plus the pause.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Final

import msgspec
import xxhash

from protocol.errors import HermaError
from protocol.ids import BlockDigest

MOONCAKE_BLOCK: Final = 512

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class TraceError(HermaError):
    """A trace is unusable; the text names the file, the line and the cause."""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One request. `digests` name the full blocks of its prompt. It arrives at `arrival_s`, but not
    before `pause_s` after the last of the turns `after`. `key` is the API key that sends it. Its
    answer calls the `tool`, if any; `is_last`: its conversation sends nothing more.
    """

    number: int
    session: str | None
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    digests: tuple[BlockDigest, ...]
    after: tuple[int, ...] = ()
    pause_s: float = 0.0
    key: str = "fleet"
    tool: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class RoutingTrace:
    """Turns in order of arrival. `turns[i].number` is i; `after` names earlier turns only."""

    name: str
    block_size: int
    turns: tuple[TracedTurn, ...]

    @property
    def span_s(self) -> float:
        """The time between the first and the last arrival."""
        return self.turns[-1].arrival_s - self.turns[0].arrival_s

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the largest turn, in tokens."""
        return max(turn.prompt_tokens + turn.output_tokens for turn in self.turns)


class _Line(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Positive
    output_length: Positive
    hash_ids: list[Count]
    session_id: str | None = None
    pause_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def block_name(seed: bytes) -> BlockDigest:
    """A digest from `seed`, uniform like a real one, as indexes require."""
    return BlockDigest(xxhash.xxh3_128_digest(seed))


class DigestChains:
    """Digests of block chains: equal ids after equal ids are the same block."""

    def __init__(self) -> None:
        self._digests: dict[tuple[BlockDigest | None, int], BlockDigest] = {}

    def digests(self, ids: Iterable[int]) -> tuple[BlockDigest, ...]:
        parent: BlockDigest | None = None
        chain: list[BlockDigest] = []
        for block_id in ids:
            known = self._digests.get((parent, block_id))
            if known is None:
                known = block_name(len(self._digests).to_bytes(8, "big"))
                self._digests[parent, block_id] = known
            chain.append(known)
            parent = known
        return tuple(chain)


def read_trace(path: Path, limit: int | None = None, seed: int = 0) -> RoutingTrace:
    """The first `limit` requests of a file. Raises `TraceError`.

    The clock of a trace may tick slowly (every 3 s in Mooncake's); requests of one tick arrive at
    random moments of it, by `seed`, because at one moment they would be an unreal burst.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    lines = _lines(path, text, limit)
    stamps = _spread([line.timestamp / 1e3 for line in lines], Random(seed))
    chains = DigestChains()
    last_of: dict[str, int] = {}
    turns: list[TracedTurn] = []
    for number, (line, arrival_s) in enumerate(zip(lines, stamps, strict=True)):
        full = line.hash_ids[: line.input_length // MOONCAKE_BLOCK]
        before = last_of.get(line.session_id) if line.session_id is not None else None
        turns.append(
            TracedTurn(
                number=number,
                session=line.session_id,
                arrival_s=arrival_s,
                prompt_tokens=line.input_length,
                output_tokens=line.output_length,
                digests=chains.digests(full),
                after=() if before is None else (before,),
                pause_s=line.pause_ms / 1e3,
            )
        )
        if line.session_id is not None:
            last_of[line.session_id] = number
    return RoutingTrace(path.stem, MOONCAKE_BLOCK, tuple(turns))


def _lines(path: Path, text: bytes, limit: int | None) -> list[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    lines: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        if limit is not None and len(lines) >= limit:
            break
        try:
            line = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        if lines and line.timestamp < lines[-1].timestamp:
            raise TraceError(
                f"{path}, line {number}: timestamp {line.timestamp:g} is before that of the line "
                f"above, {lines[-1].timestamp:g}; sort the trace by time"
            )
        num_blocks = -(-line.input_length // MOONCAKE_BLOCK)
        if len(line.hash_ids) != num_blocks:
            raise TraceError(
                f"{path}, line {number}: {len(line.hash_ids)} hash_ids for {line.input_length} "
                f"tokens; blocks of {MOONCAKE_BLOCK} make {num_blocks}"
            )
        lines.append(line)
    if not lines:
        raise TraceError(f"{path} has no requests; write one JSON object a line")
    return lines


def _spread(stamps: Sequence[float], chance: Random) -> list[float]:
    """Spread equal timestamps at random, in order, over the time until the next one."""
    spread: list[float] = []
    start = 0
    while start < len(stamps):
        end = start
        while end < len(stamps) and stamps[end] == stamps[start]:
            end += 1
        tick_s = stamps[end] - stamps[start] if end < len(stamps) else 0.0
        moments = sorted(chance.random() for _ in range(end - start - 1))
        spread += [stamps[start] + tick_s * moment for moment in (0.0, *moments)]
        start = end
    return spread
