"""What a gateway loads before it serves."""

import subprocess
import sys

UNUSED = ("httpx", "numpy", "torch", "huggingface_hub", "rich", "pygments")

SHOW = (
    "import sys, gateway.__main__; print(*(name for name in sys.argv[1:] if name in sys.modules))"
)


def test_a_gateway_loads_nothing_that_it_may_never_use() -> None:
    """httpx comes with the first provider; it takes a third of a start and 12 MB."""
    argv = [sys.executable, "-c", SHOW, *UNUSED]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert loaded.stdout.split() == []
