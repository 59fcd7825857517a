"""Calls that set a kernel's tiles name each number: nobody reviews seven by position."""

import ast
import re

from tests.architecture.source_trees import ROOT, files_of, parsed, statements

PACKAGES = ("kernels", "workers")


def test_tiles_are_written_by_keyword() -> None:
    """All classes in `kernels` named for tiles, and those of products."""
    names = {
        node.name
        for path in files_of("kernels")
        for node in statements(parsed(path))
        if isinstance(node, ast.ClassDef)
        and (node.name.endswith("Tiles") or path.name == "config.py")
    }
    assert {"FusedTiles", "Int4Tiles", "Int4Ampere", "Gemv", "Skinny", "Wide"} <= names
    called = re.compile(rf"\b({'|'.join(names)})\(")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files_of(*PACKAGES)
        if called.search(path.read_text(encoding="utf-8"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in names
        and node.args
    ]
    assert found == []
