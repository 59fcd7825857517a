"""What counts as a line of product code."""

from pathlib import Path

import pytest

from benchmarks.code_lines import LineCount, count_cuda, count_package, count_python, table


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", LineCount(0, 0, 0)),
        ('"""What this is.\n\nMore.\n"""\n\nX = 1\n"""What it means."""\n', LineCount(1, 0, 7)),
        ("import os\nfrom a import (\n    b,\n    c,\n)\n\nprint(os, b, c)\n", LineCount(1, 0, 7)),
        ("def f():\n    import os\n\n    return os\n", LineCount(2, 0, 4)),
        ("# why\nx = 1  # and how\n", LineCount(2, 0, 2)),
        ('x = (\n    "text"\n\n    "more"\n)\n', LineCount(4, 0, 5)),
        (
            (
                "@triton.jit(\n    noinline=True,\n)\ndef k(x):\n"
                '    """Doc."""\n\n    return x\n\n\ny = 1\n'
            ),
            LineCount(1, 5, 10),
        ),
    ],
)
def test_a_line_of_code(text: str, count: LineCount) -> None:
    """A line of code is no blank line, import or docstring; what Triton compiles is counted
    apart.
    """
    assert count_python(text) == count


def test_cuda_is_device_code() -> None:
    """Every line of a CUDA source that is not blank counts as device code."""
    assert count_cuda("int x;\n\n// why\n") == LineCount(0, 2, 3)


def test_a_package_is_the_sum_of_its_files(tmp_path: Path) -> None:
    """Python and CUDA below the folder; other files do not count. The table ends with the sum."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n\ny = 2\n")
    (tmp_path / "deep" / "b.cu").write_text("int x;\n")
    (tmp_path / "notes.md").write_text("x\n" * 99)
    count = count_package(tmp_path)
    assert count == LineCount(2, 1, 4)
    lines = list(table({"one": count, "two": LineCount(1000, 0, 2000)}))
    assert [line.split() for line in lines[1:]] == [
        ["one", "2", "1", "4"],
        ["two", "1,000", "0", "2,000"],
        ["together", "1,002", "1", "2,004"],
    ]
