"""The examples of docs/engines, and of two gateways, are configurations that load."""

import re
from pathlib import Path

import pytest

from config import parse_config

PAGES = sorted((Path(__file__).parents[2] / "docs" / "engines").glob("*.md"))
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{at}")
    for page in PAGES
    for at, block in enumerate(re.findall(r"```toml[^\n]*\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_loads(text: str) -> None:
    """Whole worker tables; flags that hold JSON hold valid JSON in one word."""
    config = parse_config(text, "example")
    assert config.workers
    for worker in config.workers:
        for word in () if worker.launch is None else worker.launch.argv:
            assert not word.startswith("{") or re.fullmatch(r"\{\s*\".*\}", word)


def test_two_hosts_know_each_other() -> None:
    """The page leaves keys and hashes out."""
    text = (PAGES[0].parents[1] / "two-gateways.md").read_text().replace('"..."', f'"{"k" * 40}"')
    text = text.replace("sha256:...", f"sha256:{'0' * 64}")
    one_host, host_a = (
        parse_config(block, "example")
        for block in re.findall(r"```toml[^\n]*\n(.*?)```", text, re.DOTALL)
    )
    assert one_host.gateway.processes == 2
    (worker,) = host_a.workers
    assert host_a.gateway.worker_bind in worker.gateways
    assert len(worker.gateways) == 2


def test_every_page_has_one() -> None:
    """A page without an example would be left out silently."""
    assert len(EXAMPLES) >= len(PAGES)
