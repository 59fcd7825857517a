"""What the pages show of `herma plan` is what it prints."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herma.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^```\n\$ herma (?P<words>plan [^\n]*)\n(?P<shown>.*?)^```$", re.MULTILINE | re.DOTALL
)
GAP = "...\n"


def blocks() -> Iterator[Any]:
    for page in sorted((ROOT / "docs").glob("**/*.md")):
        for number, found in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            name = f"{page.relative_to(ROOT)}-{number}"
            yield pytest.param(found["words"].split(), found["shown"], id=name)


@pytest.mark.parametrize(("words", "shown"), [*blocks()])
def test_a_page_shows_what_is_printed(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page shows what is printed to the letter, except what `...` leaves out."""
    main(words)
    printed = capsys.readouterr().out
    at = 0
    for part in shown.split(GAP):
        found = printed.find(part, at)
        assert found >= 0, f"not printed: {part}"
        at = found + len(part)
