"""HAProxy before two gateways, by the configuration in the documentation. `make chaos`."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from openai import OpenAI

from tests.e2e.test_two_gateways import Pair, long_prompt, pair  # noqa: F401 - the fixture
from tests.fakes.herma_process import wait_until
from tests.fakes.ports import free_ports

PAGE: Final = Path(__file__).parents[2] / "docs/two-gateways.md"
NUM_CLIENTS: Final = 6
NUM_TOKENS: Final = 200
HAPROXY: Final = shutil.which("haproxy")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed"),
]


@contextmanager
def balancer(folder: Path, pair: Pair) -> Iterator[str]:  # noqa: F811 - given by the test
    """The base URL of the balancer, once both gateways have passed its checks."""
    (text,) = re.findall(r"```haproxy\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = free_ports(1)
    text = text.replace("bind :8000", f"bind 127.0.0.1:{port}")
    for number, host in enumerate(pair.hosts, start=1):
        text = text.replace(f"10.0.0.{number}:8080", host.root_url.removeprefix("http://"))
    # The gateways have no keys, so that only local clients are served.
    told = "  option forwardfor\n"
    assert told in text
    text = text.replace(told, "")
    config = folder / "haproxy.cfg"
    config.write_text(f"global\n  maxconn 1000\n{text}")
    assert HAPROXY is not None
    with subprocess.Popen([HAPROXY, "-db", "-f", str(config)]) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _is_up(url), "HAProxy")
            yield f"{url}/v1"
        finally:
            process.terminate()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_official_client_has_its_answers(
    tmp_path: Path,
    pair: Pair,  # noqa: F811 - the fixture
    victim: int,
    number: signal.Signals,
) -> None:
    """The official client has its answers when one gateway is killed or stopped while both hold
    back the heads of requests.
    """
    with (
        balancer(tmp_path, pair) as url,
        OpenAI(base_url=url, api_key="unused") as client,
        ThreadPoolExecutor(NUM_CLIENTS) as threads,
    ):

        def ask(number: int) -> int:
            reply = client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": long_prompt(f"client {number}")}],
                max_tokens=NUM_TOKENS,
                extra_body={"ignore_eos": True},
            )
            return reply.usage.completion_tokens if reply.usage is not None else 0

        answers = threads.map(ask, range(NUM_CLIENTS))
        wait_until(lambda: pair.hosts[victim].metrics()["herma_sequences_running"], "requests")
        pid = pair.gateway_pid(victim)
        os.kill(pid, number)
        try:
            assert list(answers) == [NUM_TOKENS] * NUM_CLIENTS
        finally:
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
    pair.wait_ready()
