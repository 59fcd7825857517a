"""Who imports whom, read from the source: no circles, packages by their names, no tests."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source_trees import ROOT, files_of, parsed, statements

PACKAGES = ("gateway", "workers", "kernels", "protocol", "housekeeping", "config", "herma")
EXEMPT = ("protocol", "housekeeping", "kernels")
"""Flat: their files are imported directly."""
REEXPORTING = ("protocol.errors",)
"""Draws the tree of errors, the two of the package below included."""


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    _module_of(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


@cache
def _trees() -> dict[str, ast.Module]:
    """Parsed when the first test asks, not in each process that collects the tests."""
    return {name: parsed(path) for name, path in FILES.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    """The modules that are named, and what is taken from them: `a.b` and `a.b.c`."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _edges() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    edges: dict[str, set[str]] = defaultdict(set)
    for name, tree in _trees().items():
        for full in _imported(tree):
            found = full if full in FILES else full.rpartition(".")[0]
            if found in FILES and found != name:
                edges[name].add(found)
    return edges


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's strongly connected components of more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            circle, stack[at:] = stack[at:], []
            if len(circle) > 1:
                circles.append(circle)

    for name in FILES:
        if name not in index:
            visit(name)
    return circles


def _is_package(name: str) -> bool:
    return FILES[name].name == "__init__.py"


@cache
def _taken(module: str) -> frozenset[str]:
    """The names that a module imports for itself."""
    return frozenset(
        alias.asname or alias.name
        for node in statements(_trees()[module])
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )


@cache
def _offered(package: str) -> frozenset[str]:
    """The names that a package offers: those that its `__init__` imports from its own files."""
    return frozenset(
        alias.asname or alias.name
        for node in _trees()[package].body
        if isinstance(node, ast.ImportFrom) and _is_inside(node.module or "", package)
        for alias in node.names
        if f"{node.module}.{alias.name}" not in FILES
    )


def _is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _past_the_package(importer: str, imported: str) -> bool:
    """Whether a file of another subject is imported past the package that lists its names."""
    package = imported.rpartition(".")[0]
    if imported not in FILES or _is_package(imported) or package in EXEMPT:
        return False
    if importer.startswith("kernels.") and imported.startswith("kernels."):
        return False  # device code calls device code
    here = importer if _is_package(importer) else importer.rpartition(".")[0]
    return bool(_offered(package)) and not (_is_inside(here, package) or _is_inside(package, here))


def test_imports_make_no_circle() -> None:
    """A circle hides which part stands on which, and breaks with the order of imports."""
    assert _circles(_edges()) == []


def test_other_subjects_are_imported_by_their_package() -> None:
    """`from gateway.routing import Dispatcher`, never from one of its files."""
    found = [
        f"{importer} imports {node.module}"
        for importer, tree in _trees().items()
        for node in tree.body  # what few need is imported by the function that needs it
        if isinstance(node, ast.ImportFrom) and _past_the_package(importer, node.module or "")
    ]
    assert not found, "\n".join(found)


def test_names_come_from_their_file_or_its_package() -> None:
    """A file that imports a name for itself does not hand it on: readers find a name where it is
    defined, and mypy's `implicit_reexport` serves packages alone.
    """
    found = [
        f"{importer} takes {alias.name} from {node.module}"
        for importer, tree in _trees().items()
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom) and node.module in FILES
        if not _is_package(node.module) and node.module not in REEXPORTING
        for alias in node.names
        if alias.name in _taken(node.module)
    ]
    assert not found, "\n".join(found)


def test_packages_offer_only_what_others_take() -> None:
    """A name that no file outside of the package imports, its tests included, is the package's."""
    taken: dict[str, set[str]] = defaultdict(set)
    for path in files_of(*PACKAGES, "tests", "benchmarks", "training"):
        importer = _module_of(path)
        for node in statements(_trees().get(importer) or parsed(path)):
            if isinstance(node, ast.ImportFrom) and not _is_inside(importer, node.module or ""):
                taken[node.module or ""] |= {alias.name for alias in node.names}
    unused = [
        f"{package} offers {name}"
        for package in FILES
        if _is_package(package) and package.partition(".")[0] not in EXEMPT
        for name in sorted(_offered(package) - taken[package])
    ]
    assert not unused, "\n".join(unused)


def test_the_product_imports_no_tests() -> None:
    """The product imports no tests, and no benchmarks except in the command that runs them."""
    found = [
        f"{name} imports {full}"
        for name, tree in _trees().items()
        for full in _imported(tree)
        if full.partition(".")[0] == "tests"
        or (full.partition(".")[0] == "benchmarks" and not _is_inside(name, "herma"))
    ]
    assert not found, "\n".join(found)
