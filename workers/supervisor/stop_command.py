"""Runs the command that ends the remains of a launched engine, such as its container.

Owns the run: bounded; a failure is logged and never fatal. Must not know when it runs.
"""

import os
import subprocess
from collections.abc import Callable
from typing import Final

import trio

from config import LaunchConfig

STOP_S: Final = 30.0
_MAX_SHOWN: Final = 300


async def run_stop(launch: LaunchConfig | None, log: Callable[[str], None]) -> None:
    """Run `launch.stop`, for at most 30 s, if there is one."""
    if launch is None or not launch.stop:
        return
    name = launch.stop[0]
    with trio.move_on_after(STOP_S):
        try:
            done = await trio.run_process(
                list(launch.stop),
                check=False,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.env},
                cwd=launch.cwd,
            )
        except OSError as error:
            log(f"launch.stop {name} cannot run: {error.strerror}; correct it")
            return
        if done.returncode:
            said = " ".join(done.stdout.decode(errors="replace").split())[:_MAX_SHOWN]
            # Mostly there was nothing to end.
            log(f"launch.stop {name} ended with exit code {done.returncode}: {said}")
        return
    log(f"launch.stop {name} has not ended for {STOP_S:g} s, and was killed")
