"""Launches on a pretended device are those that a card would see."""

from pathlib import Path

from tests.fakes.uninterpreted import run_uninterpreted


def test_against_real_launches(tmp_path: Path) -> None:
    """Recordings are compared with real launches in a process of its own, where Triton compiles;
    see `recorder_checks`.
    """
    checks = "check_found_in_the_cache", "check_same_kernels", "check_the_hook"
    run_uninterpreted("tests.kernels.recorder_checks", *checks, cache=tmp_path)
