"""Lines of a terminal: widths, cuts, tables and bars."""

import hypothesis.strategies as st
from hypothesis import given
from rich.text import Span, Text

from herma.top.text import Column, as_ascii, bar, cut, fit, flow, graph, plain, table

COLUMNS = (
    Column("NAME", 4, 20),
    Column("STATE", 4, 10, drop=1),
    Column("N", 3, 3, align="right"),
)


def lines_of(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def test_a_name_can_neither_move_the_cursor_nor_break_a_table() -> None:
    """Control characters are shown as such; wide and combining ones take the room that they need,
    and what looks like markup is text.
    """
    assert plain("gpu0 \x1b[2Jx\n").plain == "gpu0 ?[2Jx?"
    assert plain("a\u0301 漢 \u202e né €").plain == "a\u0301 漢 ? né €"
    assert fit(plain("a\u0301漢漢"), 4).plain == "a\u0301漢…"
    assert plain("[bold]x").plain == "[bold]x"


@given(text=st.text(max_size=40), width=st.integers(0, 50))
def test_what_fits_is_exactly_as_wide(text: str, width: int) -> None:
    """Any text fits to exactly the width; a cut one ends with "…"."""
    line = plain(text)
    assert fit(line, width).cell_len == fit(line, width, "right").cell_len == width
    assert cut(line, width).cell_len == min(width, line.cell_len)
    if 0 < width < line.cell_len:
        assert cut(line, width).plain.endswith("…")


def test_a_table_drops_columns_and_lets_the_last_cell_take_the_rest() -> None:
    """The column with the highest `drop` goes first."""
    rows = [
        (plain("gpu0"), plain("ready"), plain("7")),
        (plain("gpu1"), plain("killed by the kernel")),
    ]
    assert lines_of(table(COLUMNS, rows, 40)) == [
        "NAME                 STATE        N",
        "gpu0                 ready        7",
        "gpu1                 killed by the kern…",
    ]
    assert lines_of(table(COLUMNS, rows, 11)) == [
        "NAME      N",
        "gpu0      7",
        "gpu1    ki…",
    ]


@given(width=st.integers(1, 30), held=st.floats(0, 1), cached=st.floats(0, 1))
def test_a_bar_is_as_wide_as_it_should_be(width: int, held: float, cached: float) -> None:
    """Anything above 0 is seen."""
    text = as_ascii(bar(width, held, cached)).plain
    assert len(text) == width
    assert ("#" in text) == (held > 0)


def test_a_graph_rises_to_its_largest_value() -> None:
    """Parts without a value stay blank; without values all are."""
    assert graph([0.0, 5.0, 10.0, None], 4) == "▁▅█ "
    assert graph([1.0] * 8, 4) == "████"
    assert graph([], 3) == "   "
    assert graph([4.0], 3) == "███"


def test_a_flow_counts_what_it_leaves_out() -> None:
    """A flow counts what it leaves out, in one line and in two."""
    items = [plain(f"item{at}") for at in range(6)]
    assert lines_of(flow("M", items, 24, 1)) == ["M  item0  item1 +4"]
    assert lines_of(flow("M", items, 24, 2)) == ["M  item0  item1  item2", "   item3  item4  item5"]


def test_in_ascii_a_character_stays_one() -> None:
    """Marks have others that stand for them; what is left of other alphabets is a question mark."""
    line = as_ascii(Text.assemble(("● ", "good"), "né ▁▂▃▄▅▆▇█ cut…"))
    assert line.plain == "* n? _.-=+*%# cut~"
    assert line.spans == [Span(0, 2, "good")]
