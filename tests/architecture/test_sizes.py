"""Sizes: no file over 600 lines, no function over 60, few crumbs."""

import ast
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("gateway", "workers", "kernels", "protocol", "config", "herma")
PACKAGES = (*PRODUCT, "training", "benchmarks", "tests")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MEDIAN_FUNCTION_LINES = 7
SMALL_FILE_LINES = 30
MAX_SMALL_FILES = 12
"""Of the product: an idea in 30 lines has a file of its own only where two read it."""


def _sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _product() -> list[Path]:
    return [path for path in _sources() if path.relative_to(ROOT).parts[0] in PRODUCT]


def _num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


class _Parsed(NamedTuple):
    """What is kept of a file; its tree is large."""

    has_docstring: bool
    functions: list[tuple[str, int]]
    """Where each function stands, and how many lines it has."""


@cache
def _parsed(path: Path) -> _Parsed:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [
        (
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
            (node.end_lineno or node.lineno) - node.lineno + 1,
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return _Parsed(bool(ast.get_docstring(tree)), functions)


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): _num_lines(path) for path in _sources()}
    assert lengths
    assert not {path: n for path, n in lengths.items() if n > MAX_FILE_LINES}


def test_no_function_is_long() -> None:
    lengths = [one for path in _sources() for one in _parsed(path).functions]
    assert not [(where, lines) for where, lines in lengths if lines > MAX_FUNCTION_LINES]


def test_functions_are_short() -> None:
    """The median of the product."""
    lengths = [lines for path in _product() for _, lines in _parsed(path).functions]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES


def test_small_files_are_few() -> None:
    """`__init__` and `__main__` apart."""
    sizes = {
        str(path.relative_to(ROOT)): _num_lines(path)
        for path in _product()
        if path.stem not in {"__init__", "__main__"}
    }
    small = {path: lines for path, lines in sizes.items() if lines < SMALL_FILE_LINES}
    assert len(small) <= MAX_SMALL_FILES, small


@pytest.mark.parametrize("package", ["gateway", "workers", "kernels", "protocol", "config"])
def test_files_open_with_what_they_own(package: str) -> None:
    """Every module of the product opens with a docstring."""
    bare = [
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if not _parsed(path).has_docstring
    ]
    assert not bare


def test_broad_excepts_are_few() -> None:
    """`except Exception` stands only at process edges, each with a written reason."""
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _sources()
        if "tests" not in path.relative_to(ROOT).parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if "except Exception" in line or "except BaseException" in line or "except:" in line
    ]
    assert len(places) <= 6, places
