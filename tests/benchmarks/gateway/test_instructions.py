"""InstructionCounts of callgrind are read from its dumps, and a missing valgrind is named."""

import pytest

from benchmarks.gateway.instructions import InstructionCounts, counts_of, main
from protocol.errors import ConfigError

DUMP = """# callgrind format
version: 1
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
summary: 18446744073709515229 0 0 0 0 0 0 0 0

fn=(552) siftdown
26 1659 3 1 1
totals: 398860615 118271809 66572738 9443252 6497836 1925997 7666 34539 33644
"""


def test_the_totals_are_read_not_the_summary() -> None:
    """The summary counts from before the counting was switched on, and overflows."""
    assert counts_of(DUMP) == InstructionCounts(398_860_615, 9_443_252)


def test_without_simulated_caches_there_are_no_misses() -> None:
    """Without simulated caches the only counted event are instructions."""
    assert counts_of("events: Ir\ntotals: 41 \n") == InstructionCounts(41, 0)


@pytest.mark.parametrize("end", ["fn=", "summary:", "totals:"])
def test_a_half_written_dump_has_no_counts(end: str) -> None:
    """Callgrind writes the totals last."""
    assert counts_of(DUMP[: DUMP.index(end)]) is None


def test_without_valgrind_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without valgrind the error names it, before a gateway starts."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="valgrind"):
        main([])
