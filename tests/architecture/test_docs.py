"""The documentation names files and folders that exist, and the index every decision."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = "gateway|workers|kernels|protocol|housekeeping|config|herma|tests|training|benchmarks|docs"
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
# A file of an earlier commit is named as "`path` of commit 1234567".
IN_BACKTICKS = re.compile(rf"`((?:{TOPS})/[\w./-]+)`(?! of commit)")
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")
TO_HEADING = re.compile(r"\]\(([\w./-]*)#([\w-]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _missing(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for name in IN_BACKTICKS.findall(text):
        if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists():
            yield name
    for target in LINK.findall(text):
        if not (page.parent / target).exists():
            yield target


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The names by which GitHub links to the page's headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_heading_leads_to_one(page: Path) -> None:
    for name, anchor in TO_HEADING.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / name).resolve() if name else page
        if target.suffix == ".md":
            assert anchor in _anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_files_that_exist(page: Path) -> None:
    """Paths in backticks and relative links of a page lead somewhere."""
    assert not [*_missing(page)]


def test_the_index_of_decisions_lists_each_with_its_title() -> None:
    """The index lists the decisions in the order of their numbers, each with its title, a date and
    a state.
    """
    folder = ROOT / "docs" / "decisions"
    pages = {
        page.name: page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        for page in sorted(folder.glob("0*.md"))
    }
    row = re.compile(r"^\| \[(\d+)\]\((\S+)\) \| (.+) \| \d{4}-\d\d-\d\d \| .+ \|$", re.MULTILINE)
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = {name: f"{number} {title}" for number, name, title in row.findall(index)}
    assert [*listed.items()] == [*pages.items()]
