"""The drill with real processes: the units' own commands, and an answer of the model."""

import functools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from herma.boot import BootUnit, only_this
from herma.commands import drill as drill_command
from herma.processes import Supervisor
from protocol.control_messages import WorkerStatus
from protocol.errors import ConfigError, HttpError
from protocol.transport import HttpClient
from tests.fakes.certificates import certificate_for
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports

ROOT = Path(__file__).parents[3]


def configure(folder: Path) -> tuple[Path, int]:
    """A file with a replay engine, and secrets' file that lets units find the checkout."""
    port = free_ports(2)
    file = folder / "herma.toml"
    file.write_text(
        f'[gateway]\nport = {port}\nworker_bind = "tcp://127.0.0.1:{port + 1}"\n'
        '[[models]]\nname = "echo"\n[[workers]]\nname = "w"\nengine = "synthetic"\n'
        'model = "builtin:herma-tiny"\n'
    )
    (folder / "herma.env").write_text(
        f"PYTHONPATH={ROOT}\nXDG_STATE_HOME={folder}\nHERMA_RUNTIME_DIR={folder / 'run'}\n"
    )
    return file, port


def herma(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "herma", *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HERMA_RUNTIME_DIR": str(folder / "run")},
    )


@contextmanager
def short_folder() -> Iterator[Path]:
    """The address of a Unix socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="herma-drill-test-") as name:
        yield Path(name)


def test_a_boot_brings_the_model_back() -> None:
    """What `herma up` serves there is stopped first; nothing of the drill is left."""
    with short_folder() as folder:
        file, port = configure(folder)
        units = str(folder / "units")
        herma(folder, "systemd", "--config", str(file), "--user", "--output", units)
        with herma_up(file, port=port, HERMA_RUNTIME_DIR=str(folder / "run")) as up:
            asked = herma(folder, "drill", "--user", "--units", units, "--timeout", "90")
            assert asked.returncode == 2
            assert f"stops what serves here (http://127.0.0.1:{port}, worker w): add --yes" in (
                asked.stderr
            )
            assert up.process.poll() is None
            done = herma(folder, "drill", "--yes", "--user", "--units", units, "--timeout", "90")
            assert done.returncode == 0, done.stdout + done.stderr
            assert up.process.wait(30) == 0
        lines = done.stdout.splitlines()
        assert lines[0] == f"stopping process {up.process.pid} (herma up)"
        assert lines[1].startswith("herma-gateway.service has started in ")
        assert lines[2].startswith("herma-worker-w.service has started in ")
        assert lines[-2].startswith("echo has answered in ")
        assert lines[-1].startswith("the drill passed in ")
        assert herma(folder, "worker", "status").returncode == 2


def test_a_worker_of_another_file_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it has the name of one of the units."""
    mine, other = tmp_path / "a.toml", tmp_path / "b.toml"

    def unit(*words: str) -> BootUnit:
        return BootUnit("herma-worker-w.service", ("/bin/python", *words), {}, str(tmp_path))

    def supervisor(pid: int, name: str, file: str | None) -> Supervisor:
        state = WorkerStatus(name, pid, "m", "m", "ready", 1, 0, config=file)
        return Supervisor(tmp_path / str(pid), pid, state)

    running = [
        supervisor(1, "w", str(mine)),
        supervisor(2, "w", str(other)),
        supervisor(3, "v", str(mine)),
        supervisor(4, "w", ""),
        supervisor(5, "w", None),
        Supervisor(tmp_path / "6", 6, None),
    ]
    monkeypatch.setattr(drill_command, "supervisors", lambda: iter(running))
    gateway = unit("gateway", "--config", str(mine))
    named = [gateway, unit("worker", "--name", "w", "--config", str(mine))]
    assert [one.pid for one in drill_command._supervisors_of(named)] == [1, 5]
    built_in = [unit("worker", "--name", "w")]
    assert [one.pid for one in drill_command._supervisors_of(built_in)] == [4]


def test_a_unit_whose_program_is_gone_fails_the_drill() -> None:
    """The ghost unit: status 127 or no program at all, named with its unit."""
    with short_folder() as folder:
        file, _ = configure(folder)
        units = folder / "units"
        herma(folder, "systemd", "--config", str(file), "--user", "--output", str(units))
        ghost = units / "herma-worker-w.service"
        ghost.write_text(ghost.read_text().replace(sys.executable, "/opt/gone/start.sh"))
        done = herma(folder, "drill", "--yes", "--user", "--units", str(units), "--timeout", "60")
        assert done.returncode == 1
        last = done.stdout.splitlines()[-1]
        assert last.startswith(
            "the drill failed: herma-worker-w.service: /opt/gone/start.sh: No su"
        )


def test_another_program_on_the_port_is_left_alone() -> None:
    """Another program on the port is named and left running."""
    with short_folder() as folder:
        file, port = configure(folder)
        units = str(folder / "units")
        herma(folder, "systemd", "--config", str(file), "--user", "--output", units)
        with socket.create_server(("127.0.0.1", port)):
            done = herma(folder, "drill", "--yes", "--user", "--units", units)
        assert done.returncode == 2
        assert f"port {port} is taken by process {os.getpid()}, which is not Herma's" in done.stderr


def test_a_gateway_with_tls_is_drilled_by_its_own_certificate() -> None:
    """A gateway with TLS is drilled by its own certificate, which is for another name than
    loopback's and of an authority that this host does not trust.
    """
    with short_folder() as folder:
        file, _ = configure(folder)
        certificate_for("herma.example", folder)
        tls = 'tls_certificate_file = "certificate.pem"\ntls_key_file = "key.pem"\n[[models]]'
        file.write_text(file.read_text().replace("[[models]]", tls, 1))
        units = str(folder / "units")
        herma(folder, "systemd", "--config", str(file), "--user", "--output", units)
        done = herma(folder, "drill", "--yes", "--user", "--units", units, "--timeout", "90")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-2].startswith("echo has answered in ")


async def test_only_that_certificate_is_trusted(tmp_path: Path) -> None:
    """A port that another program took over is not asked, nor given the key."""
    folders = [tmp_path / name for name in ("own", "other")]
    for folder in folders:
        folder.mkdir()
    certificate, _ = certificate_for("herma.example", folders[0])
    _, other = certificate_for("herma.example", folders[1])
    with pytest.raises(ConfigError, match="tls_certificate_file"):
        only_this(tmp_path / "missing.pem")
    async with trio.open_nursery() as nursery:
        serve = functools.partial(trio.serve_ssl_over_tcp, _hold, 0, other, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        port = listener.transport_listener.socket.getsockname()[1]
        client = HttpClient(f"https://127.0.0.1:{port}", tls=only_this(certificate))
        with pytest.raises(HttpError, match="certificate"):
            async with client.exchange("GET", "/", [], b""):
                pass
        client.close()
        nursery.cancel_scope.cancel()


async def _hold(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """A handshake that fails is the client's."""
    with suppress(trio.BrokenResourceError):
        await stream.receive_some()
