"""Installs the clients of clients.toml, each in an environment of its own.

Owns where an environment lies, when it is made anew and what is printed of it. Must not know what a
client is asked.

    python -m tests.clients.install FOLDER [NAME ...]
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.clients.catalogue import NODE_VERSION, Environment, all_environments

INSTALL_S: Final = 1200
NODE: Final = "node-runtime"
"""The environment of the pinned Node, in which the npm clients run."""

_NPM_QUIET: Final = ("--silent", "--no-fund", "--no-audit")


def node_bin(folder: Path) -> Path:
    """The folder of the pinned Node's program."""
    return folder / NODE / "node_modules" / _node_package() / "bin"


def is_installed(folder: Path, environment: Environment) -> bool:
    """Whether exactly the pinned packages are there."""
    stamp = folder / environment.name / ".installed"
    return stamp.exists() and stamp.read_text() == environment.pins


def install(folder: Path, environment: Environment) -> str:
    """Make the environment anew if its pins have changed. Returns "installed", or "skipped" with
    the installer's own words.
    """
    if is_installed(folder, environment):
        return "installed"
    place = folder / environment.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        for argv in _steps(folder, environment):
            subprocess.run(
                argv,
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                env=_environ(folder, environment),
            )
    except subprocess.CalledProcessError as failed:
        words = (failed.stderr.strip() or failed.stdout.strip()).splitlines()
        said = next((word for word in words if word.startswith("ERROR:")), "") or "".join(
            words[-1:]
        )
        return f"skipped, {said or f'status {failed.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as failed:
        return f"skipped, {failed}"
    (place / ".installed").write_text(environment.pins)
    return "installed"


def _steps(folder: Path, environment: Environment) -> Iterator[list[str | Path]]:
    place = folder / environment.name
    if environment.kind == "npm":
        yield ["npm", "install", *_NPM_QUIET, "--prefix", place, *environment.packages]
        return
    yield [python_of(environment.python), "-m", "venv", place]
    yield [place / "bin/python", "-m", "pip", "install", "-q", *environment.packages]


def _environ(folder: Path, environment: Environment) -> dict[str, str]:
    """npm's scripts find the pinned Node first, except where that is installed itself."""
    if environment.name == NODE:
        return dict(os.environ)
    return {**os.environ, "PATH": f"{node_bin(folder)}{os.pathsep}{os.environ['PATH']}"}


def python_of(version: str) -> str:
    """A Python that is `version` or later: this one, one on PATH, or one of pyenv. Shims of pyenv
    are on PATH for versions that are not chosen too, and then do not run.
    """
    wanted = tuple(map(int, version.split(".")))
    if sys.version_info[:2] >= wanted:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for program in candidates:
        if program is not None and _runs(program):
            return str(program)
    raise FileNotFoundError(f"needs Python {version}, which is neither on PATH nor in pyenv")


def _runs(program: str | Path) -> bool:
    return subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0


def _node_package() -> str:
    arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"node-{platform.system().lower()}-{arch}"


def main(argv: list[str]) -> int:
    """Install all, or those that are named; a line for each."""
    folder, names = Path(argv[0]).absolute(), set(argv[1:])
    node = Environment(
        name=NODE, kind="npm", packages=(f"{_node_package()}@{NODE_VERSION}",), python="3.11"
    )
    environments = [one for one in all_environments() if not names or one.name in names]
    if unknown := names - {one.name for one in environments}:
        print(f"no such client: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if any(one.kind == "npm" for one in environments):
        environments.insert(0, node)
    for one in environments:
        print(f"{one.name} ({' '.join(one.packages)}): {install(folder, one)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
