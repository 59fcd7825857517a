"""The processes of ranks on one host, and what a rank does not wait for."""

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workers.engine.parallel.calls import CallChannel
from workers.engine.parallel.following import follow

ROOT = Path(__file__).parents[4]
LOOKS = """
import os
import sys

from config import WorkerConfig
from tests.fakes.herma_process import descendants
from workers.engine.__main__ import _load_ranks


class Looks:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(len(descendants(os.getpid())), flush=True)
            os._exit(0)


sys.meta_path.insert(0, Looks())
_load_ranks(WorkerConfig("w", "m", "m", (), 1, device="cpu", tensor_parallel=3), None, None)
"""


def test_all_ranks_import_torch_at_the_same_time(tmp_path: Path) -> None:
    """The others are started before the first one looks for it."""
    found = subprocess.run(
        [sys.executable, "-c", LOOKS],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (found.stdout, found.stderr) == ("2\n", "")


def test_a_collection_does_not_look_at_what_a_rank_has_loaded() -> None:
    """All ranks would wait for it."""
    ours, theirs = socket.socketpair()
    theirs.close()
    loaded, before = [[]], gc.get_freeze_count()
    runner: Any = SimpleNamespace(tier=None)
    follow(runner, CallChannel(ours))
    ours.close()
    assert gc.get_freeze_count() > before
    assert not any(each is loaded for each in gc.get_objects())
