"""The source as trees, read as cheaply as the tests here allow: two thousand files are two million
nodes, and most tests ask for statements alone.
"""

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files_of(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """Without the collector, which would look at each new node, and a tree has no circles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if was_on:
            gc.enable()


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements of the tree, those inside of others too, without their expressions."""
    left: list[ast.AST] = [*reversed(tree.body)]
    while left:
        node = left.pop()
        if isinstance(node, ast.stmt):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            left.extend(getattr(node, field, ()))
