"""One word, one meaning: a public class has a name that no other public class has."""

import re
from collections import defaultdict
from typing import Final

from tests.architecture.source_trees import ROOT, files_of

PACKAGES: Final = (
    "gateway", "workers", "kernels", "protocol", "housekeeping", "config", "herma", "benchmarks",
    "training",
)  # fmt: skip
TWICE: Final[dict[str, str]] = {}
"""Names that two classes may have, because the field itself uses them for both, with the reason."""

_PUBLIC_CLASS: Final = re.compile(r"^class ([A-Za-z]\w*)[(:\[]", re.MULTILINE)


def _places() -> dict[str, list[str]]:
    """The files of the public classes of each name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files_of(*PACKAGES):
        text = path.read_text(encoding="utf-8")
        for found in _PUBLIC_CLASS.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            places[found[1]].append(f"{path.relative_to(ROOT)}:{line}")
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
