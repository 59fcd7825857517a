"""One word, one meaning: a public class has a name that no other public class has."""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "gateway", "workers", "kernels", "protocol", "housekeeping", "config", "herma", "benchmarks",
    "training",
)  # fmt: skip
TWICE: Final[dict[str, str]] = {}
"""Names that two classes may have, because the field itself uses them for both, with the reason."""


def _places() -> dict[str, list[str]]:
    """The files of the public classes of each name."""
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def test_a_public_class_name_is_unique() -> None:
    """A class name means one thing in all packages. A second class gets another name, by
    `docs/glossary.md`, or a line in `TWICE`.
    """
    places = _places()
    assert len(places) > 1000
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in TWICE} == {}
    assert set(TWICE) <= set(twice), "an exception that nothing needs any more"
    assert all(TWICE.values()), "an exception has a reason"
