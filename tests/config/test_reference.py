"""docs/configuration.md is what the sources say."""

from pathlib import Path

import msgspec
import pytest

from config.reference import meanings, reference, tables
from herma.cli import main

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def test_the_page_is_what_the_sources_say(capsys: pytest.CaptureFixture[str]) -> None:
    """`herma config reference > docs/configuration.md` writes it anew."""
    assert main(["config", "reference"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8") == reference()


def test_each_key_has_a_meaning_and_no_other_has() -> None:
    """Each key has a meaning, in the order of the tables, and no other word has one."""
    known = {
        struct.__name__: [field.name for field in msgspec.structs.fields(struct)]
        for struct in tables()
    }
    assert {name: sorted(keys) for name, keys in known.items()} == {
        name: sorted(lines) for name, lines in meanings().items()
    }
