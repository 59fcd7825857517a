"""Traces: what is read, and what is refused by its line."""

from pathlib import Path
from random import Random

import msgspec
import pytest

from benchmarks.routing.trace import DigestChains, TraceError, _spread, read_trace


def line(**changes: object) -> bytes:
    """A line of a trace."""
    fields = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
    return msgspec.json.encode({**fields, **changes})


def written(tmp_path: Path, *lines: bytes) -> Path:
    """A trace file."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    """Full blocks are named by their chain, sessions follow each other after a pause."""
    path = written(
        tmp_path,
        line(session_id="a"),
        line(timestamp=2000, hash_ids=[1, 9, 3]),
        line(timestamp=3000, session_id="a", pause_ms=500),
        line(timestamp=4000),
    )
    first, second, third, _ = read_trace(path).turns
    assert (first.prompt_tokens, first.output_tokens, first.arrival_s) == (1100, 5, 0.0)
    assert len(first.digests) == 2  # the third block is not full
    assert first.digests == third.digests
    assert first.digests[0] == second.digests[0]
    assert first.digests[1] != second.digests[1]
    assert (third.after, third.pause_s) == ((0,), 0.5)
    assert second.after == ()
    assert len(read_trace(path, limit=2).turns) == 2


def test_equal_ids_after_different_ids_are_different_blocks() -> None:
    """A block is named with all that is before it."""
    chains = DigestChains()
    assert chains.digests([1, 2])[1] != chains.digests([3, 2])[1]
    assert chains.digests([1, 2]) == chains.digests([1, 2])


@pytest.mark.parametrize(
    ("lines", "number", "why"),
    [
        ([b'{"timestamp": 0}'], 1, "input_length"),
        ([line(), line(output_length=-1)], 2, "output_length"),
        ([line(), line(timestamp=-5)], 2, "timestamp"),
        ([line(), line(input_length=0)], 2, "input_length"),
        ([line(), line(hash_ids=[1, -2, 3])], 2, "hash_ids"),
        ([line(), line(hash_ids=[1])], 2, "hash_ids"),
        ([line(timestamp=9), line(timestamp=8)], 2, "sort the trace"),
        ([line(), b"nonsense"], 2, "JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[bytes], number: int, why: str) -> None:
    """The first line that is wrong is named with what is wrong."""
    with pytest.raises(TraceError, match=f"line {number}: .*{why}"):
        read_trace(written(tmp_path, *lines))


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    """Nothing to simulate is an error, not an empty table."""
    with pytest.raises(TraceError, match="has no requests"):
        read_trace(written(tmp_path))
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "none")


def test_requests_of_one_tick_are_spread_over_it_in_order() -> None:
    """The first stays at the tick, the others come before the next one; the last tick stays."""
    moments = _spread([0.0, 0.0, 0.0, 3.0, 3.0], Random(0))
    assert moments == sorted(moments)
    assert moments[0] == 0.0
    assert 0.0 < moments[1] < moments[2] < 3.0
    assert moments[3:] == [3.0, 3.0]
