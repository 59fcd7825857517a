"""The pages about clients: what they say is run, and prints what they say."""

import shutil
import subprocess
import sys

import pytest

from tests.fakes.herma_process import HermaProcess
from tests.fakes.pages import Example, examples

BOUND_S = 60
PYTHON = examples("openai.md", "python")
SHELL = examples("curl.md", "bash")


@pytest.mark.parametrize("example", PYTHON)
def test_a_python_example_prints_what_the_page_says(fleet: HermaProcess, example: Example) -> None:
    """Against the built-in model, which answers greedily; only its address and name differ."""
    _run([sys.executable, "-c", example.at(fleet.root_url, "default")], example.printed)


@pytest.mark.parametrize("example", SHELL)
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_a_shell_example_prints_what_the_page_says(fleet: HermaProcess, example: Example) -> None:
    """A shell example with curl prints what the page says."""
    _run(["bash", "-euc", example.at(fleet.root_url, "default")], example.printed)


def test_the_pages_have_examples() -> None:
    """The tests above run something."""
    assert (len(PYTHON), len(SHELL)) == (2, 5)


def _run(argv: list[str], printed: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == printed.strip()
