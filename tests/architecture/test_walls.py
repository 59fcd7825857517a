"""The walls between the packages, checked again on what a process really imports."""

import subprocess
import sys

import pytest

CASES = [
    ("gateway.app", ("torch", "triton", "numpy", "safetensors", "workers")),
    (
        "workers.supervisor.app",
        ("torch", "triton", "numpy", "safetensors", "gateway", "httpx", "starlette"),
    ),
    ("herma.cli", ("torch", "trio", "httpx", "starlette", "gateway", "workers")),
    ("config", ("trio", "zmq", "torch")),
]


@pytest.mark.parametrize(("module", "forbidden"), CASES)
def test_importing_a_part_does_not_bring_the_others(
    module: str, forbidden: tuple[str, ...]
) -> None:
    """A light process stays light: importing it loads none of the heavy or foreign packages."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert not set(done.stdout.split()) & set(forbidden)
