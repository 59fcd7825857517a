"""Signals that come while the modules of a command are imported."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_IMPORT = """
import os, signal, sys, types
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup hands an ignored one down
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "herma.cli":
            os.kill(os.getpid(), signal.{name})
            cli = types.ModuleType("herma.cli")
            cli.main = lambda: print(signal.getsignal(signal.SIGINT).__name__) or 0
            from importlib.util import spec_from_loader
            class Loader:
                def create_module(self, spec): return cli
                def exec_module(self, module): pass
            return spec_from_loader(name, Loader())
sys.meta_path.insert(0, Finder())
sys.argv = ["herma", *{words!r}]
from herma.start import main
sys.exit(main())
"""


def signalled(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = AT_IMPORT.replace("{name}", name).replace("{words!r}", repr([*words]))
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_ctrl_c_leaves_no_traceback() -> None:
    done = signalled("SIGINT", "up")
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


@pytest.mark.parametrize("module", ["herma.entry", "config.found_file"])
def test_ctrl_c_behind_the_imports_leaves_no_traceback(module: str) -> None:
    """While the command line is read, before the command handles signals itself."""
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["herma", "status"]
from herma.start import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "words", [("up",), ("gateway", "--port", "1"), ("--parent", "7", "worker")]
)
def test_a_reload_does_not_end_what_starts(words: tuple[str, ...]) -> None:
    """The file is read after that anyway. Ctrl-C is handled as ever once the command runs."""
    done = signalled("SIGHUP", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "default_int_handler\n"


def test_other_commands_end_with_their_terminal() -> None:
    assert signalled("SIGHUP", "top").returncode == -signal.SIGHUP
