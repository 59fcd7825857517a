"""Launches on a card that is not there are those that a card would see."""

from pathlib import Path

import pytest

from tests.fakes.uninterpreted import run_uninterpreted

CHECKS = ["check_same_kernels", "check_found_in_the_cache", "check_the_hook"]


@pytest.mark.parametrize("check", CHECKS)
def test_against_real_launches(check: str, tmp_path: Path) -> None:
    """In a process of its own, where Triton compiles; see `noted_checks`."""
    run_uninterpreted("tests.kernels.noted_checks", check, cache=tmp_path)
