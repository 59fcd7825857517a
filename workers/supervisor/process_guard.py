"""The guard of one engine's process group (`workers/supervisor/kill_orphaned_group.py`), from the
supervisor's side.

Owns its process and the pipe whose end tells it of our death. Must not know the engine.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final, final

_SCRIPT: Final = Path(__file__).with_name("kill_orphaned_group.py")


@final
class Guard:
    """Watches over one group until dismissed."""

    def __init__(self, group: int) -> None:
        """Raises `OSError` if it cannot be started."""
        self._process = subprocess.Popen(
            # Isolated and without site-packages: it needs nothing of them, and starts sooner.
            [sys.executable, "-I", "-S", str(_SCRIPT), str(group)],
            stdin=subprocess.PIPE,  # close-on-exec here, so that no other child keeps it open
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to our own group must not take it along
        )

    def dismiss(self) -> None:
        """End it. Call before the engine is reaped: until then nobody else has its number."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
