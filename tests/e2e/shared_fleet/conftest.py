"""One fleet for the tests of this folder, which leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.fakes.checked_http import checked_sdk_client
from tests.fakes.herma_process import HermaProcess, herma_up

SMALL_WINDOW = 512

FLEET = f"""
[gateway]
port = 0
worker_bind = "ipc://{{folder}}/workers"

[[models]]
name = "alpha"
aliases = ["default"]

[[models]]
name = "beta"

[[workers]]
name = "a1"
model = "builtin:herma-tiny"
serves = "alpha"

[[workers]]
name = "a2"
model = "builtin:herma-tiny"
serves = "alpha"

[[workers]]
name = "b1"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "beta"
context_length = {SMALL_WINDOW}
"""


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """Two models on three workers; `beta` has a window of 512 tokens and a synthetic engine."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    config = folder / "herma.toml"
    config.write_text(FLEET.format(folder=folder))
    with herma_up(config) as herma:
        herma.wait_models_ready({"alpha": 2, "beta": 1})
        yield herma


@pytest.fixture(scope="package")
def client(fleet: HermaProcess) -> Iterator[OpenAI]:
    """The official client, pointed at the fleet; it must not hide errors by retrying, and
    checks every stream that it reads.
    """
    http = checked_sdk_client()
    with OpenAI(
        base_url=fleet.base_url, api_key="unused", max_retries=0, http_client=http
    ) as openai:
        yield openai
