"""A real gateway with the servers that break (`liar.py`, `token_liar.py`) in all their places.

Owns the processes and the configuration, whose bounds are 0.6 to 1 s. Must not know what is asked.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports

TOKEN_PLACES: Final = ("token-alone", "token-pair", "token-two")
PLACES: Final = ("provider-alone", "provider-pair", "text-alone", "text-pair", *TOKEN_PLACES)
"""`pair`: a healthy provider is configured as fallback. `two`: a healthy worker is beside it."""

_CONFIG: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
first_token_s = 0.4
stall_s = 0.4
resume_wait_s = 2
rejoin_wait_s = 2

[providers.liar]
base_url = "http://127.0.0.1:{liar}/v1"
connect_s = 1
first_token_s = 0.4
read_s = 0.6
answer_s = 1

[providers.good]
base_url = "http://127.0.0.1:{good}/v1"

[[models]]
name = "provider-alone"
fallback = [{{ provider = "liar", model = "there" }}]

[[models]]
name = "provider-pair"
fallback = [{{ provider = "liar", model = "there" }}, {{ provider = "good", model = "there" }}]
"""
_MODEL: Final = """
[[models]]
name = "{model}"
"""
_FALLBACK: Final = """fallback = [{ provider = "good", model = "there" }]
"""
_WORKER: Final = """
[[workers]]
name = "{model}"
model = "there"
serves = "{model}"
engine = "openai"
url = "http://127.0.0.1:{liar}"
probe_context = 16
"""


class Liar:
    """A process that breaks. `log` is where it writes what it was asked."""

    def __init__(self, log: Path, *argv: str) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *argv], stdin=subprocess.PIPE, stdout=file, text=True
            )

    @property
    def asked(self) -> list[str]:
        """The questions that it has read, and the orders."""
        return self._log.read_text().splitlines()

    def order(self, health: str) -> None:
        """Break its health so from now on; "" heals it."""
        count = len(self.asked_orders)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{health}\n")
        self._process.stdin.flush()
        wait_until(lambda: len(self.asked_orders) > count, f"the order {health!r}")

    @property
    def asked_orders(self) -> list[str]:
        return [line for line in self.asked if line.startswith("ordered")]

    def stop(self) -> None:
        """Let it stand still, with its sockets open."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Bed:
    """The gateway at `root`, and its liars: one that serves text, and one per token model."""

    def __init__(self, herma: HermaProcess, liars: list[Liar]) -> None:
        self.root = herma.root_url
        self.liars = liars
        self._herma = herma

    def wait_ready(self) -> None:
        """Return once every worker may be asked."""
        ready = {"text-alone": 1, "text-pair": 1, "token-alone": 1, "token-pair": 1}
        self._herma.wait_models_ready({**ready, "token-two": 2})

    def asked(self) -> set[str]:
        """The questions that any liar has read."""
        return {line for liar in self.liars for line in liar.asked}


@contextmanager
def open_bed(folder: Path) -> Iterator[Bed]:
    """A gateway with the liars in all places, and good servers beside them."""
    liar = free_ports(2)
    good = liar + 1
    text = _CONFIG.format(folder=folder, liar=liar, good=good)
    for model in PLACES[2:]:
        text += _MODEL.format(model=model) + (_FALLBACK if model.endswith("pair") else "")
    for model in ("text-alone", "text-pair"):
        text += _WORKER.format(model=model, liar=liar)
    config = folder / "herma.toml"
    config.write_text(text)
    address = f"ipc://{folder}/workers"

    with ExitStack() as stack:

        def start(name: str, *argv: str) -> Liar:
            process = Liar(folder / f"{name}.log", *argv)
            stack.callback(process.close)
            return process

        liars = [start("liar", "tests.chaos.liar", str(liar))]
        start("good", "tests.chaos.liar", str(good), "good")
        module = "tests.chaos.token_liar"
        liars += [start(model, module, address, model) for model in TOKEN_PLACES]
        start("good-one", module, address, "token-two", "good")
        bed = Bed(stack.enter_context(herma_up(config)), liars)
        bed.wait_ready()
        yield bed
