"""`herma top` as a person runs it, before a gateway with a made-up fleet."""

import fcntl
import functools
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import trio

from config import KeyConfig, hash_api_key
from gateway.dashboard import DashboardState
from gateway.http.routes import edge_app
from herma import processes
from herma.cli import main
from herma.processes import GatewayProcess
from herma.terminal import console
from herma.top import GatewayPage, TopData, View, follow
from protocol.control_messages import GatewayStatus
from protocol.errors import ConfigError
from tests.fakes.served import served
from tests.fakes.shown_fleet import ShownFleet, shown

KEYS = (
    KeyConfig(name="agent", hash=hash_api_key("herma-sk-agent")),
    KeyConfig(name="boss", hash=hash_api_key("herma-sk-boss"), admin=True),
)
ARGV = [sys.executable, "-m", "herma", "top"]
PATIENCE_S = 120.0
"""Bounds every wait; nothing is expected to take long."""
_STYLE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


async def top(*words: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        [*ARGV, *words],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={**os.environ, **environ},
    )


async def test_once_prints_plain_text_and_json_what_the_gateway_says() -> None:
    """For a pipe: no escape sequences; in an ASCII locale nothing else either."""
    async with shown(ShownFleet().past(60), patience_s=4 * PATIENCE_S) as url:
        done = await top("--url", f"{url}/v1", "--once", PYTHONIOENCODING="utf-8", COLUMNS="100")
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode()
        assert "\x1b" not in text
        assert text.count("\nbox-") == 15
        assert max(map(len, text.splitlines())) <= 100
        wide = await top("--url", url, "--once", PYTHONIOENCODING="utf-8", COLUMNS="180")
        assert wide.returncode == 0, wide.stderr
        beside = wide.stdout.decode()
        (first,) = (at for at, line in enumerate(beside.splitlines()) if line.endswith("  LOG"))
        assert len(beside.splitlines()) > first + 1
        plain = await top("--url", url, "--once", PYTHONIOENCODING="ascii")
        assert plain.stdout.isascii()
        assert b"###" in plain.stdout
        told = await top("--url", url, "--json")
        assert len(msgspec.json.decode(told.stdout, type=DashboardState).overview.workers) == 16


class Terminal:
    """A pseudo-terminal, and what was written to it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.seen = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def until(self, text: bytes) -> None:
        """Read until it is there, styles apart, and forget what came before it."""
        with trio.fail_after(PATIENCE_S):
            while text not in self.seen:
                await trio.lowlevel.wait_readable(self.master)
                self.seen = _STYLE.sub(b"", self.seen + os.read(self.master, 65_536))
        self.seen = self.seen.partition(text)[2]

    async def drain(self) -> None:
        """Read on, and forget."""
        while True:
            await trio.lowlevel.wait_readable(self.master)
            os.read(self.master, 65_536)


async def test_it_follows_the_stream_until_q() -> None:
    """On a real terminal: frames, a part of its own by Tab, a new size, a gateway that is gone."""
    fleet = ShownFleet().past(60)
    terminal = Terminal(80, 24)
    before = termios.tcgetattr(terminal.slave)
    async with trio.open_nursery() as nursery:
        async with served(edge_app(fleet.edge()), 4 * PATIENCE_S) as url:
            environ = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
            environ |= {"COLUMNS": "80", "LINES": "24"}  # which do not follow a terminal's size
            start = functools.partial(
                trio.run_process, stdin=terminal.slave, stdout=terminal.slave, env=environ
            )
            process = await nursery.start(start, [*ARGV, "--url", url])
            await terminal.until(b"live")
            await terminal.until("● down: exit code 137".encode())
            await terminal.until(b"Tab all workers requests log")
            number = fleet.traces._number
            fleet.step()
            assert fleet.traces._number > number
            await terminal.until(f"open {len(fleet.traces.open)}".encode())
            os.write(terminal.master, b"\t")
            await terminal.until(b"box-12 ")
            terminal.resize(160, 24)
            os.kill(process.pid, signal.SIGWINCH)  # a terminal sends it to its own group
            await terminal.until(b"NVIDIA H100")
        await terminal.until(b"no connection for")
        os.write(terminal.master, b"\x1b[Z\tq")  # a slow line brings several keys at once
        with trio.fail_after(PATIENCE_S):
            while process.poll() is None:
                with trio.move_on_after(0.1):
                    await terminal.drain()
    assert process.returncode == 0
    after = termios.tcgetattr(terminal.slave)
    assert after[3] == before[3]
    os.close(terminal.master)
    os.close(terminal.slave)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["top", *words]) == 2
    return capsys.readouterr().err


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No gateway, no address, no such variable."""
    nowhere = "http://127.0.0.1:9"
    said = refusal(capsys, "--url", nowhere, "--once")
    assert said.startswith(f"herma: no gateway answers at {nowhere} (")
    assert said.count("\n") == 1
    assert "not 'box'" in refusal(capsys, "--url", "box", "--once")
    assert "NO_SUCH" in refusal(capsys, "--url", nowhere, "--key-env", "NO_SUCH")


def test_another_program_at_the_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Another program at the address is reported in one line, though its error page has many."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = refusal(capsys, "--url", f"http://127.0.0.1:{server.server_port}", "--once")
        server.shutdown()
    assert said.count("\n") == 1
    assert said.endswith("; is a Herma gateway there?\n")


def test_the_gateway_of_this_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes serve one address; of two gateways one has to be named."""

    def running(*urls: str) -> list[GatewayProcess]:
        return [
            *(GatewayProcess(Path("x"), 1, GatewayStatus(1, url, "0.1.0")) for url in urls),
            GatewayProcess(Path("y"), 2, None),
        ]

    def found(*urls: str) -> str:
        monkeypatch.setattr(processes, "gateways", lambda: running(*urls))
        return processes.gateway_url(None)

    assert found() == "http://127.0.0.1:8080"
    assert found("http://0.0.0.0:81", "http://0.0.0.0:81") == "http://127.0.0.1:81"
    assert found("https://[::]:82") == "https://127.0.0.1:82"
    with pytest.raises(ConfigError, match="--url"):
        found("http://127.0.0.1:81", "http://127.0.0.1:82")
    assert processes.gateway_url("http://box:9") == "http://box:9"


def test_the_gateway_of_a_file_is_found_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The gateway of a file is found by the file that it says it runs, else by the address in the
    file; another program there is named.
    """
    file = tmp_path / "herma.toml"
    file.write_text('[gateway]\nhost = "127.0.0.1"\nport = 8181\n')
    other = GatewayProcess(
        Path("x"), 1, GatewayStatus(1, "http://127.0.0.1:81", "1", config="/x.toml")
    )
    monkeypatch.setattr(processes, "gateways", lambda: [other])
    assert processes.gateway_url(None, file) == "http://127.0.0.1:8181"
    assert "name another with --url: http://127.0.0.1:81" in capfd.readouterr().err
    status = GatewayStatus(2, "http://0.0.0.0:8282", "1", config=str(file))
    own = GatewayProcess(Path("y"), 2, status)
    monkeypatch.setattr(processes, "gateways", lambda: [other, own])
    assert processes.gateway_url(None, file) == "http://127.0.0.1:8282"
    assert capfd.readouterr().err == ""
    file.write_text("[gateway]\nport = 0\n")
    monkeypatch.setattr(processes, "gateways", lambda: [other])
    assert processes.gateway_url(None, file) == "http://127.0.0.1:81"


async def test_a_pipe_is_told_what_to_do_and_a_weak_key_is_refused() -> None:
    async with shown(ShownFleet().past(60), keys=KEYS) as url:
        page, weak = GatewayPage(url, "herma-sk-boss"), GatewayPage(url, "herma-sk-agent")
        with closing(page), closing(weak):
            await refuses(page, weak)


async def refuses(page: GatewayPage, weak: GatewayPage) -> None:
    with pytest.raises(ConfigError, match="this is no terminal: use --once"):
        await follow(page, View(80), console(sys.stdout))
    elsewhere = (b"x-forwarded-for", b"192.0.2.7")
    page._headers.append(elsewhere)
    assert (await page.state())[0].overview.workers
    weak._headers.append(elsewhere)
    with pytest.raises(ConfigError, match="to admins only"):
        await weak.state()
    with pytest.raises(ConfigError, match="to admins only"):
        await weak.follow(TopData(), lambda: None)
