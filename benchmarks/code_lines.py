"""How much product code there is: `python -m benchmarks.code_lines [CHECKOUT]`.

Owns the definition of a line of code: blank lines, imports and docstrings (the strings below
constants included) do not count; comments do. Device code stands apart: functions that Triton
compiles, and CUDA sources. Must not judge.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PRODUCT: Final = ("gateway", "workers", "kernels", "protocol", "housekeeping", "config", "herma")
CUDA: Final = (".cu", ".cuh", ".h")


class LineCount(NamedTuple):
    """`code` and `device` are lines of code on the host and on a card, `total` all lines."""

    code: int = 0
    device: int = 0
    total: int = 0

    def plus(self, other: "LineCount") -> "LineCount":
        return LineCount(*(sum(pair) for pair in zip(self, other, strict=True)))


def count_python(text: str) -> LineCount:
    """The lines of a Python file."""
    tree = ast.parse(text)
    lines = text.splitlines()
    code = {number for number, line in enumerate(lines, start=1) if line.strip()}
    code -= {number for node in ast.walk(tree) if _is_no_code(node) for number in _span(node)}
    device = {number for node in ast.walk(tree) if _is_device_code(node) for number in _span(node)}
    return LineCount(len(code - device), len(code & device), len(lines))


def count_cuda(text: str) -> LineCount:
    """The lines of a CUDA source, all of them device code but for blank ones."""
    lines = text.splitlines()
    return LineCount(0, sum(1 for line in lines if line.strip()), len(lines))


def count_package(folder: Path) -> LineCount:
    """The lines of all Python files and CUDA sources below `folder`."""
    count = LineCount()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            count = count.plus(count_python(path.read_text(encoding="utf-8")))
        elif path.suffix in CUDA:
            count = count.plus(count_cuda(path.read_text(encoding="utf-8")))
    return count


def _is_no_code(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_device_code(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        "jit" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _span(node: ast.AST) -> range:
    """The numbers of a statement's lines, its decorators included."""
    assert isinstance(node, ast.stmt)
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    start = min((node.lineno, *(one.lineno for one in decorators)))
    return range(start, (node.end_lineno or node.lineno) + 1)


def table(counts: dict[str, LineCount]) -> Iterator[str]:
    """A line for each package, and their sum."""
    yield f"{'package':<14}{'code':>9}{'device':>9}{'total':>9}"
    whole = LineCount()
    for name, count in counts.items():
        whole = whole.plus(count)
        yield f"{name:<14}{count.code:>9,}{count.device:>9,}{count.total:>9,}"
    yield f"{'together':<14}{whole.code:>9,}{whole.device:>9,}{whole.total:>9,}"


def main() -> None:
    """Print the table of a checkout: this one, if none is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.code_lines", description=__doc__)
    here = Path(__file__).parents[1]
    parser.add_argument("checkout", type=Path, nargs="?", default=here, help="default: this one")
    root: Path = parser.parse_args().checkout
    found = {name: root / name for name in PRODUCT if (root / name).is_dir()}
    if not found:
        parser.error(f"{root} has none of {', '.join(PRODUCT)}")
    print("\n".join(table({name: count_package(folder) for name, folder in found.items()})))


if __name__ == "__main__":
    main()
