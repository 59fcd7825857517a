"""Every file, folder and socket that a fleet writes is its user's alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

FLEET = """
[gateway]
port = 0
{bind}

[[models]]
name = "m"

[[workers]]
name = "native"
model = "builtin:herma-tiny"
serves = "m"
device = "cpu"

[[workers]]
name = "synthetic/1"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "m"
"""


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The most that a umask leaves open."""
    before = os.umask(0)
    yield
    os.umask(before)


def _use(herma: HermaProcess) -> None:
    """Store a response, and do what the audit records."""
    reply = httpx.post(
        f"{herma.base_url}/responses",
        json={"model": "m", "input": "Hi", "max_output_tokens": 4, "store": True},
        timeout=300,
    )
    assert reply.status_code == 200


def _open_to_others(folders: dict[str, Path]) -> Iterator[str]:
    """What others may read, write or pass through."""
    for name, folder in folders.items():
        for path in sorted(folder.rglob("*")):
            found = path.lstat()
            if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
                yield f"{name}: {stat.filemode(found.st_mode)} {path.relative_to(folder)}"


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("is_tcp", [False, True])
def test_all_that_a_fleet_writes_is_private(tmp_path: Path, is_tcp: bool) -> None:
    """State, sockets, caches and keys, with an empty umask and while the fleet runs."""
    file = tmp_path / "herma.toml"
    bind = f'worker_bind = "tcp://127.0.0.1:{free_ports(1)}"' if is_tcp else ""
    file.write_text(FLEET.format(bind=bind))
    with TemporaryDirectory(prefix="h-") as base:
        folders = {name: Path(base, name) for name in ("state", "run", "cache", "home", "tmp")}
        for folder in folders.values():
            folder.mkdir(mode=0o700)
        environ = {
            "XDG_STATE_HOME": str(folders["state"] / "of" / "me"),
            "HERMA_RUNTIME_DIR": str(folders["run"] / "herma"),
            "XDG_CACHE_HOME": str(folders["cache"]),
            "TRITON_CACHE_DIR": str(folders["cache"] / "triton"),
            "HOME": str(folders["home"]),
            "TMPDIR": str(folders["tmp"]),
        }
        with herma_up(file, **environ) as herma:
            herma.wait_models_ready({"m": 2})
            _use(herma)
            names = [path.name for path in folders["state"].rglob("*")]
            assert is_tcp == ("gateway.secret" in names)
            assert is_tcp != any(name.startswith("workers-") for name in names)
            opened = list(_open_to_others(folders))
            assert not opened
            herma.stop()
        wait_until(lambda: list(folders["state"].rglob("audit.jsonl")), "the audit file")
        names = [path.name for path in folders["state"].rglob("*")]
        assert {"ledger.sqlite", "responses.sqlite", "starts"} <= {*names}
        opened = list(_open_to_others(folders))
        assert not opened
