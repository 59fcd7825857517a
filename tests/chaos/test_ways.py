"""The server that breaks, pairwise: every way in every place, by every API, streamed and whole."""

from pathlib import Path

from tests.chaos.bed import open_bed
from tests.chaos.ways import all_cases, never_asked, pairwise, run


def test_every_pair_is_met() -> None:
    """The choice is far smaller than all, and misses no way in any place."""
    chosen = pairwise()
    assert {(one.way, one.place) for one in chosen} == {(c.way, c.place) for c in all_cases()}
    assert len(chosen) < len(all_cases()) / 3


def test_every_answer_is_whole_or_moved_or_one_error(tmp_path: Path) -> None:
    """None hangs, and no half answer passes for a whole one."""
    with open_bed(tmp_path) as bed:
        found = run(bed, pairwise())
        assert len(never_asked(bed, found)) < len(found) / 4
    wrong = {case: what for case, what in found.items() if what not in ("whole", "moved", "error")}
    assert not wrong
    assert "moved" in found.values()
