"""Lines of a terminal: widths, cuts, tables and bars."""

import hypothesis.strategies as st
from hypothesis import given

from herma.top.text import (
    ASCII_MARKS,
    Column,
    Marks,
    TextPiece,
    TextRow,
    as_ansi,
    as_plain,
    bar,
    cut,
    fit,
    flow,
    graph,
    length,
    plain,
    printable,
    table,
)

MARKS = Marks()
COLUMNS = (
    Column("NAME", 4, 20),
    Column("STATE", 4, 10, drop=1),
    Column("N", 3, 3, is_right=True),
)


def test_a_name_can_neither_move_the_cursor_nor_break_a_table() -> None:
    """Control characters, combining and wide ones."""
    assert printable("gpu0 \x1b[2Jx\n") == "gpu0 ?[2Jx?"
    assert printable("a\u0301 漢 \u202e né €") == "a? ? ? né €"


@given(text=st.text(max_size=40), width=st.integers(0, 50))
def test_what_fits_is_exactly_as_wide(text: str, width: int) -> None:
    """Whatever the text is; a cut one ends with the mark for more."""
    line = plain(text)
    assert length(fit(line, width, MARKS)) == width
    assert length(cut(line, width)) == min(width, len(text))
    if 0 < width < len(text):
        assert as_plain([cut(line, width)]).rstrip().endswith("…")


def test_a_table_drops_columns_and_lets_the_last_cell_take_the_rest() -> None:
    """The column with the highest `drop` goes first."""
    rows = [
        TextRow((plain("gpu0"), plain("ready"), plain("7"))),
        TextRow((plain("gpu1"), plain("killed by the kernel"))),
    ]
    assert as_plain(table(COLUMNS, rows, 40, MARKS)).splitlines() == [
        "NAME                 STATE        N",
        "gpu0                 ready        7",
        "gpu1                 killed by the kern…",
    ]
    assert as_plain(table(COLUMNS, rows, 11, MARKS)).splitlines() == [
        "NAME      N",
        "gpu0      7",
        "gpu1    ki…",
    ]


@given(width=st.integers(1, 30), held=st.floats(0, 1), cached=st.floats(0, 1))
def test_a_bar_is_as_wide_as_it_should_be(width: int, held: float, cached: float) -> None:
    """Anything above 0 is seen."""
    line = bar(width, held, cached, ASCII_MARKS)
    text = as_plain([line]).rstrip("\n")
    assert len(text) == width
    assert ("#" in text) == (held > 0)


def test_a_graph_rises_to_its_largest_value() -> None:
    """Parts without a value stay blank; without values all are."""
    assert graph([0.0, 5.0, 10.0, None], 4, MARKS) == "▁▅█ "
    assert graph([1.0] * 8, 4, MARKS) == "████"
    assert graph([], 3, MARKS) == "   "
    assert graph([4.0], 3, ASCII_MARKS) == "###"


def test_a_flow_counts_what_it_leaves_out() -> None:
    """In one line and in two."""
    items = [plain(f"item{at}") for at in range(6)]
    assert as_plain(flow("M", items, 24, 1, MARKS)) == "M  item0  item1 +4\n"
    two = as_plain(flow("M", items, 24, 2, MARKS)).splitlines()
    assert two == ["M  item0  item1  item2", "   item3  item4  item5"]


def test_a_style_is_written_and_ended() -> None:
    line = (TextPiece("a"), TextPiece("b", "good"))
    assert as_ansi(line) == "a\x1b[32mb\x1b[0m"
