"""The end-to-end tests' own process: it fails early, in the words of the workers."""

import time
from pathlib import Path

import pytest

from tests.fakes.herma_process import READY_S, herma_up

NO_WINDOW = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "builtin:herma-tiny"
context_length = 900000
"""


def test_workers_that_have_given_up_end_the_wait(tmp_path: Path) -> None:
    """Workers that have given up end the wait; their cause comes first in what the test prints."""
    path = tmp_path / "herma.toml"
    path.write_text(NO_WINDOW.format(folder=tmp_path))
    began_at = time.monotonic()
    with pytest.raises(AssertionError, match=r"w has given up .*over the window"), herma_up(path):
        pass
    assert time.monotonic() - began_at < READY_S
