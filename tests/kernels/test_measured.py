"""Tables of measured tiles: data files that a sweep's writer makes."""

from datetime import date
from pathlib import Path

import pytest

from benchmarks.kernels.linear import written as named
from benchmarks.linear_table import entries_of, main, with_report, written
from kernels.linear import int4_choose, measured
from kernels.linear.config import Int4Tiles, Skinny, Wide
from kernels.linear.measured import Entry

FILES = (measured.DENSE, measured.FP8, measured.INT4)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_its_writer_writes(name: str) -> None:
    """A file equals what its writer writes, says where and when it was measured, and names no shape
    twice.
    """
    tables = measured.read(name)
    assert written(tables) == (measured.FOLDER / name).read_text(encoding="utf-8")
    assert all(table.card and "torch" in table.software for table in tables)
    dates = [date.fromisoformat(table.date) for table in tables]
    assert dates == sorted(dates)
    shapes = [(entry.op, entry.rows, entry.weight) for table in tables for entry in table.entries]
    assert len(shapes) == len(set(shapes))


@pytest.mark.parametrize("words", [["--help"], [], ["--onto"], ["--fp4", "report.json"]])
def test_the_writer_writes_nothing_without_a_report(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--help` or a wrong option once left an empty table."""
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    with pytest.raises(SystemExit):
        main(words)
    assert [*tmp_path.iterdir()] == []


def test_the_fastest_variant_becomes_the_entry() -> None:
    """The fastest variant becomes the entry, by keyword and without defaults; the library only if
    it is faster by 2 %.
    """
    skinny, wide = Skinny(64, 128, 1, 4, 3, pads_rows=True), Wide(2, 2, reads_once=True)
    times = {named(skinny): 7.04, named(wide): 8.0, "library": 7.0}
    results = [
        {"case": "norm_linear 4096 x 1024 T=16", "times_us": times, "peers": ["library"]},
        {
            "case": "linear_add 4096 x 1024 T=16",
            "times_us": {**times, "library": 6.5},
            "peers": ["library"],
        },
        {"case": "linear_add 4096 x 1024 T=17", "times_us": times, "peers": ["library"]},
        {"case": "linear_add 4096 x 1024 T=16 fp8", "times_us": times, "peers": ["library"]},
    ]
    first, second = entries_of(results, "")
    tiles = {"block_n": 64, "block_k": 128, "splits": 1, "num_warps": 4, "num_stages": 3}
    assert first == Entry(
        op="norm_linear",
        rows=16,
        weight=(4096, 1024),
        us=7.0,
        kernel="skinny",
        tiles={**tiles, "pads_rows": True},
    )
    assert (second.kernel, second.us, second.tiles) == ("library", 6.5, {})
    report = {"machine": "a card, software", "date": "2026-01-02", "sweep": "linear_sweep"}
    older = measured.Table("other", "software", "2026-01-01", "a sweep", [second])
    tables = with_report([older], {**report, "results": results}, "")
    assert [(table.card, table.date) for table in tables] == [("a card", "2026-01-02")]
    assert measured.products_of(tables) == {
        ("norm_linear", 16, 4096, 1024): skinny,
        ("linear_add", 16, 4096, 1024): None,
    }


def test_in_4_bits_only_what_the_rule_does_not_find_is_kept() -> None:
    rule = int4_choose.by_rule(64, 6144, 4096, has_wgmma=True)
    other = rule._replace(stages=rule.stages - 1)
    case = "norm_linear 6144 x 4096 T=64 int4"
    for best, rest in ((rule, other), (other, rule)):
        times = {named(best): 5.0, named(rest): 6.0}
        found = entries_of([{"case": case, "times_us": times, "peers": []}], "int4")
        assert [Int4Tiles(**entry.tiles) for entry in found] == [other][: best is other]
        assert [entry.op for entry in found] == [""][: best is other]
