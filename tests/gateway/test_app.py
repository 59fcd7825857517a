"""The gateway process: its beginning and its end, as an operator sees them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest
import trio

from config import LedgerConfig, ledger_path
from herma.processes import gateways
from protocol.control_messages import GatewayStatus
from protocol.messages import Fault, Welcome
from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import title_of
from tests.fakes.served import ask
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

CONFIG = """
[gateway]
port = 0
worker_bind = "{bind}"
drain_s = 60.0

[[models]]
name = "alpha"
"""


def gateway_argv(config: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "--config", str(config), *more]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "herma.toml"
    path.write_text(CONFIG.format(bind=f"ipc://{tmp_path}/workers"))
    return path


async def read_line(stream: trio.abc.ReceiveStream) -> str:
    line = b""
    while not line.endswith(b"\n"):
        got = await stream.receive_some(1)
        assert got, f"the process ended after {line!r}"
        line += got
    return line.decode().strip()


def statuses() -> dict[int, GatewayStatus]:
    """What the gateways of this user say of themselves, by their process."""
    return {one.pid: one.status for one in gateways() if one.status is not None}


async def test_it_says_ready_answers_and_ends_open_streams_before_it_stops(config: Path) -> None:
    """`ready URL` comes with the first ready worker; SIGTERM waits for a stream; status 0."""
    fake = FakeWorker()
    process = await trio.lowlevel.open_process(gateway_argv(config), stdout=PIPE)
    assert process.stdout is not None
    with trio.fail_after(3 * PATIENCE_S):
        async with process.stdout, open_worker(f"ipc://{config.parent}/workers", fake):
            word, url = (await read_line(process.stdout)).split()
            assert word == "ready"
            assert url.startswith("http://127.0.0.1:")
            assert url.endswith("/v1")
            assert title_of(process.pid) == "herma gateway"
            said = await trio.to_thread.run_sync(statuses)
            ledger = ledger_path(LedgerConfig(), os.environ)
            assert said[process.pid].ledger == str(ledger.absolute())
            body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}
            fake.pause_after = 3
            async with checked_async_client(timeout_s=PATIENCE_S) as client:
                request = client.stream(
                    "POST", f"{url}/chat/completions", json={**body, "stream": True}
                )
                async with request as response:
                    process.send_signal(signal.SIGTERM)
                    root = url.removesuffix("/v1")
                    while (await ask(root, "GET", "/health")).json["status"] != "draining":
                        pass
                    fake.resume()
                    text = (await response.aread()).decode()
                    await wait_refused(url)
            assert text.endswith("data: [DONE]\n\n")
            assert await process.wait() == 0


async def test_what_it_waits_for_is_said_once(config: Path) -> None:
    """When all workers that are here have given up, with their cause; `ready` may come still."""
    fake = FakeWorker("one")
    process = await trio.lowlevel.open_process(gateway_argv(config), stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    address = f"ipc://{config.parent}/workers"
    with trio.fail_after(3 * PATIENCE_S):
        async with process.stdout, process.stderr, open_worker(address, fake, ready=False):
            await fake.wait(Welcome)
            fake.say(Fault("one", 1, "no such model", 1, is_final=True))
            while "not ready" not in (told := await read_line(process.stderr)):
                pass
            assert "no worker is starting: one has given up (no such model); waiting" in told
            fake.epoch = 2
            fake.register(ready=False)
            fake.say(Fault("one", 2, "no such file", 1, is_final=True))
            while "no such file" not in await read_line(process.stderr):
                pass
            async with open_worker(address, FakeWorker("two")):
                assert (await read_line(process.stdout)).startswith("ready ")
                process.terminate()
                assert await process.wait() == 0
            said = bytearray()
            async for data in process.stderr:
                said += data
    assert b"not ready" not in said


async def test_that_providers_answer_is_said_when_all_workers_gave_up(config: Path) -> None:
    """If all workers have given up, `ready` says with the dashboard's address that providers
    answer; without more words it comes with the first worker.
    """
    cloud = 'fallback = [{ provider = "p", model = "m" }]'
    provider = '[providers.p]\nbase_url = "http://127.0.0.1:9/v1"'
    worker = '[[workers]]\nname = "one"\nmodel = "builtin:herma-tiny"\nserves = "alpha"'
    path = trio.Path(config)
    await path.write_text(f"{await path.read_text()}{cloud}\n{provider}\n{worker}\n")
    fake = FakeWorker("one")
    process = await trio.lowlevel.open_process(gateway_argv(config), stdout=PIPE)
    assert process.stdout is not None
    address = f"ipc://{config.parent}/workers"
    with trio.fail_after(3 * PATIENCE_S):
        async with process.stdout, open_worker(address, fake, ready=False):
            await fake.wait(Welcome)
            fake.say(Fault("one", 1, "no such model", 1, is_final=True))
            word, url, words = (await read_line(process.stdout)).split(maxsplit=2)
            assert (word, words) == ("ready", "(providers answer; no worker is ready yet)")
            root = url.removesuffix("/v1")
            assert await read_line(process.stdout) == f"dashboard {root}/"
            async with open_worker(address, FakeWorker("two")):
                assert await read_line(process.stdout) == f"ready {url}"
                process.terminate()
                assert await process.wait() == 0


async def wait_refused(url: str) -> None:
    """Return once nobody listens at `url`."""
    try:
        while True:
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(f"{url}/models")
    except httpx.ConnectError:
        return


async def test_a_gateway_without_workers_is_ready_for_its_providers(tmp_path: Path) -> None:
    """A file that has only providers waits for no worker."""
    path = tmp_path / "herma.toml"
    cloud = 'fallback = [{ provider = "p", model = "m" }]'
    provider = '[providers.p]\nbase_url = "http://127.0.0.1:9/v1"'
    bind = f"ipc://{tmp_path}/workers"
    path.write_text(f"{CONFIG.format(bind=bind)}{cloud}\n{provider}\n")
    process = await trio.lowlevel.open_process(gateway_argv(path), stdout=PIPE)
    assert process.stdout is not None
    with trio.fail_after(PATIENCE_S):
        async with process.stdout:
            assert (await read_line(process.stdout)).startswith("ready ")
            process.terminate()
            assert await process.wait() == 0


async def test_an_address_that_is_taken_is_one_line(config: Path) -> None:
    """Status 1, one line on stderr that names the port, no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = await run_to_its_end(gateway_argv(config, "--port", str(port)))
    assert done.returncode == 1
    assert_one_line(done, f"port {port}")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gateway]\nprot = 1\n", "prot"),
        ('[gateway]\nhost = "0.0.0.0"\n', "0.0.0.0"),
        (
            '[providers.far]\nbase_url = "https://far.example/v1"\napi_key_env = "NO_SUCH_KEY"\n',
            "NO_SUCH_KEY",
        ),
        (
            '[[models]]\nname = "m"\naliases = ["a"]\nalias_params.a.default.top_p = 7\n',
            "alias_params.a.default.top_p",
        ),
    ],
)
async def test_a_bad_configuration_is_one_line(tmp_path: Path, text: str, named: str) -> None:
    """Status 1 and one line that names what is wrong."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    done = await run_to_its_end(gateway_argv(path))
    assert done.returncode == 1
    assert_one_line(done, named)


async def run_to_its_end(argv: list[str]) -> "subprocess.CompletedProcess[bytes]":
    env = {key: value for key, value in os.environ.items() if key != "NO_SUCH_KEY"}
    with trio.fail_after(3 * PATIENCE_S):
        return await trio.run_process(
            argv, capture_stdout=True, capture_stderr=True, check=False, env=env
        )


def assert_one_line(done: "subprocess.CompletedProcess[bytes]", named: str) -> None:
    said = [line for line in done.stderr.decode().splitlines() if " INFO " not in line]
    assert len(said) == 1, said
    assert said[0].startswith("herma gateway: ")
    assert named in said[0]
