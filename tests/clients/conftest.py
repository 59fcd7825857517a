"""A fleet of scripted engines for the official clients, and the clients' own environments."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.herma_process import HermaProcess, herma_up

KEY = "sk-herma-clients"
SMALL_WINDOW = 512

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
max_queue = 1
rejoin_wait_s = 1.0

[[models]]
name = "alpha"
aliases = ["claude-*"]

[[models]]
name = "narrow"

[[models]]
name = "nobody"

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{script}"

[[workers]]
name = "n"
model = "builtin:herma-tiny"
serves = "narrow"
engine = "scripted"
script = "{script}"
max_seqs = 1
context_length = {window}

[[keys]]
name = "clients"
hash = "sha256:{hash}"
admin = true
"""


def sha256(secret: str) -> str:
    """The hash of a key, as the file holds it."""
    return hashlib.sha256(secret.encode()).hexdigest()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """`alpha` answers by the script; so does `narrow`, which has one place, one waiting place and
    a window of 512 tokens; nobody serves `nobody`. All of it wants `KEY`.
    """
    folder = tmp_path_factory.mktemp("clients")
    config = folder / "herma.toml"
    config.write_text(
        FLEET.format(
            folder=folder,
            script=Path(__file__).parent / "script.toml",
            window=SMALL_WINDOW,
            hash=sha256(KEY),
        )
    )
    with herma_up(config) as herma:
        herma.wait_models_ready({"alpha": 1, "narrow": 1})
        yield herma
