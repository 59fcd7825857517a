"""A fleet for Hermes Agent: scripted engines, and the built-in model beside them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.herma_process import HermaProcess, herma_up

SCRIPTED = """
[[workers]]
name = "{name}"
model = "builtin:herma-tiny"
serves = "{serves}"
engine = "scripted"
script = "{script}"
"""

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "agent"

[[models]]
name = "single"

[[models]]
name = "herma-tiny"

[[workers]]
name = "tiny"
model = "builtin:herma-tiny"
serves = "herma-tiny"
{a1}{a2}{s1}max_seqs = 1
"""


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """`agent` on two scripted workers, `single` on one that has a single place, and herma-tiny."""
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-hermes` makes the environment and runs this")
    folder = tmp_path_factory.mktemp("hermes")
    script = Path(__file__).parent / "script.toml"
    workers = {
        name: SCRIPTED.format(name=name, serves=serves, script=script)
        for name, serves in (("a1", "agent"), ("a2", "agent"), ("s1", "single"))
    }
    config = folder / "herma.toml"
    config.write_text(FLEET.format(folder=folder, **workers))
    with herma_up(config) as herma:
        herma.wait_models_ready({"agent": 2, "single": 1, "herma-tiny": 1})
        yield herma
