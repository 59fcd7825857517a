"""Calls that set a kernel's tiles name each number: nobody reviews seven by position."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "workers")


def test_tiles_are_written_by_keyword() -> None:
    """All classes in `kernels` named for tiles, and those of products."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    names = {
        node.name
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and path.is_relative_to(ROOT / "kernels")
        and (node.name.endswith("Tiles") or path.name == "config.py")
    }
    assert {"FusedTiles", "Int4Tiles", "Int4Ampere", "Gemv", "Skinny", "Wide"} <= names
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in names
        and node.args
    ]
    assert found == []
