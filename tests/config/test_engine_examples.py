"""The examples of docs/engines are configurations that load."""

import re
from pathlib import Path

import pytest

from config import parse_config

PAGES = sorted((Path(__file__).parents[2] / "docs" / "engines").glob("*.md"))
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{at}")
    for page in PAGES
    for at, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_loads(text: str) -> None:
    """Whole worker tables; flags that hold JSON hold valid JSON in one word."""
    config = parse_config(text, "example")
    assert config.workers
    for worker in config.workers:
        for word in () if worker.launch is None else worker.launch.argv:
            assert not word.startswith("{") or re.fullmatch(r"\{\s*\".*\}", word)


def test_every_page_has_one() -> None:
    """A page without an example would be left out silently."""
    assert len(EXAMPLES) >= len(PAGES)
