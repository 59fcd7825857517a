"""Launches on a card that is not there are those that a card would see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = ["check_same_kernels", "check_found_in_the_cache", "check_the_hook"]


@pytest.mark.parametrize("check", CHECKS)
def test_against_real_launches(check: str, tmp_path: Path) -> None:
    """In a process of its own, where Triton compiles; see `noted_checks`."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.noted_checks", check],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
