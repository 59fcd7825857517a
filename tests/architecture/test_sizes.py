"""Sizes: guides of 400 lines for a file and 40 for a function, and reviewed exceptions."""

import ast
import re
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.source_trees import ROOT, files_of, parsed, statements

PRODUCT = ("gateway", "workers", "kernels", "protocol", "housekeeping", "config", "herma")
PACKAGES = (*PRODUCT, "training", "benchmarks", "tests")
GUIDE_FILE_LINES = 400
GUIDE_FUNCTION_LINES = 40
"""Guides: what is longer is named in a warning."""
REVIEWED_FILE_LINES = 600
REVIEWED_FUNCTION_LINES = 60
"""What is longer than this was looked at by a person and stands in `long.toml` with the reason."""
REVIEWED = tomllib.loads((Path(__file__).parent / "long.toml").read_text(encoding="utf-8"))


def _sources() -> list[Path]:
    return files_of(*PACKAGES)


def _product() -> list[Path]:
    return [path for path in _sources() if path.relative_to(ROOT).parts[0] in PRODUCT]


def _num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


class _Function(NamedTuple):
    name: str
    num_lines: int
    is_device_code: bool
    """Compiled by Triton."""


class _Parsed(NamedTuple):
    """What is kept of a file; its tree is large."""

    has_docstring: bool
    functions: list[_Function]
    packed: list[str]
    """Where a tuple or list is unpacked in the place where it is written."""


def _is_device_code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


_MAY_PACK = re.compile(r"\*\s*[(\[]")
"""Most files have no star before a bracket, and need no look at their expressions."""


@cache
def _parsed(path: Path) -> _Parsed:
    tree = parsed(path)
    functions = [
        _Function(
            node.name, (node.end_lineno or node.lineno) - node.lineno + 1, _is_device_code(node)
        )
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    packed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in (ast.walk(tree) if _MAY_PACK.search(path.read_text(encoding="utf-8")) else ())
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
    ]
    return _Parsed(bool(ast.get_docstring(tree)), functions, packed)


def _lengths_of_files() -> dict[str, int]:
    return {str(path.relative_to(ROOT)): _num_lines(path) for path in _sources()}


def _lengths_of_functions() -> dict[str, int]:
    """The length of each function by `path::name`; device code has no guide, because a kernel reads
    best in one piece.
    """
    return {
        f"{path.relative_to(ROOT)}::{function.name}": function.num_lines
        for path in _sources()
        for function in _parsed(path).functions
        if not function.is_device_code
    }


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize(
    ("kind", "guide", "bound"),
    [
        ("files", GUIDE_FILE_LINES, REVIEWED_FILE_LINES),
        ("functions", GUIDE_FUNCTION_LINES, REVIEWED_FUNCTION_LINES),
    ],
)
def test_what_is_long_was_reviewed(kind: str, guide: int, bound: int) -> None:
    """A file or function beyond the bound stands in `long.toml` with its reason, and nothing else
    stands there. What is beyond the guide is a warning.
    """
    lengths = _lengths_of_files() if kind == "files" else _lengths_of_functions()
    assert lengths
    over = [where for where, lines in lengths.items() if lines > guide]
    if over:
        longest = ", ".join(sorted(over, key=lengths.__getitem__)[-5:])
        warnings.warn(f"{len(over)} {kind} over {guide} lines, at last {longest}", stacklevel=1)
    reviewed: dict[str, str] = REVIEWED.get(kind, {})
    assert {where for where, lines in lengths.items() if lines > bound} == set(reviewed)
    assert all(reviewed.values()), "a reviewed exception has a reason"


def test_nothing_is_packed_to_save_lines() -> None:
    """`f(*(a, b), *(c, d))` hides from reader and type checker which parameter takes what, and
    `{*("a", "b"), *("c",)}` groups words that belong to no group. A long list of words or numbers
    that one line each would not make clearer ends with `# fmt: skip`.
    """
    packed = [place for path in _sources() for place in _parsed(path).packed]
    assert not packed


@pytest.mark.parametrize(
    "package", ["gateway", "workers", "kernels", "protocol", "housekeeping", "config"]
)
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
