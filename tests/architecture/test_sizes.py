"""The house stays small: no file over 600 lines, no function over 60."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("gateway", "workers", "kernels", "protocol", "config", "herma"),
    *("training", "benchmarks", "tests"),
)
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60


def _sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {num_lines} lines"


def test_no_file_is_long() -> None:
    """Every source file holds at most 600 lines."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _sources()}
    assert lengths
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_FILE_LINES}
    assert not long


def test_no_function_is_long() -> None:
    """Every function holds at most 60 lines."""
    assert not [line for path in _sources() for line in _long_functions(path)]


@pytest.mark.parametrize("package", ["gateway", "workers", "kernels", "protocol", "config"])
def test_files_open_with_what_they_own(package: str) -> None:
    """Every module of the product opens with a docstring."""
    bare = [
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
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
