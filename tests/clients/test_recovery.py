"""What real clients make of an answer that breaks off, of a busy provider and of a spent limit.

The gateway's only upstream is ill, so that no failover hides it from the client. A cut lasts until
the client has been told of one failure; then answers are whole, and the client must come to the
last words by its own defaults, or end at once with a reason. `make test-clients` prints the table.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.clients.catalogue import Client, all_clients
from tests.clients.ill_provider import BUSY, CUTS, IllProvider, ill_provider
from tests.clients.install import is_installed
from tests.clients.recording_proxy import Asked, recording_proxy
from tests.clients.turns import NOTE, ClientHome, request_of
from tests.fakes.herma_process import HermaProcess, herma_up

BOUND_S: Final = 400.0
AGENTS: Final = ("claude", "codex", "opencode", "qwen", "copilot", "cline", "continue", "pi")
SDKS: Final = ("sdk-openai", "sdk-anthropic", "sdk-node", "sdk-ai")
SPENT: Final = "spent"
IN_STREAM: Final = ("cut-text", "cut-call")
"""SDKs hand what has begun to their callers and do not ask again."""

DEAF: Final = "continue"
"""It asks again after any 429, eleven times, and its user agent is an accident of its bundler."""

NUM_AT_ONCE: Final = 3

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Outcome:
    """How one turn ended: the client's last words are there, or a reason is."""

    client: str
    illness: str
    is_recovered: bool
    num_told: int
    num_asked: int
    lasted_s: float
    words: str

    def row(self) -> str:
        end = "recovered" if self.is_recovered else "ended"
        told = f"told {self.num_told}, asked {self.num_asked}, {self.lasted_s:.0f} s"
        return f"{self.client:14} {self.illness:10} {end:10} {told}"


def _fleet(provider: IllProvider, folder: Path) -> str:
    parts = ["[gateway]", "port = 0", f'worker_bind = "ipc://{folder}/workers"']
    parts += ["[ledger]", f'path = "{folder}/ledger.sqlite"']
    for name in (*CUTS, *BUSY, SPENT):
        parts += [f"[providers.{name}]", f'base_url = "{provider.url}"']
        if name == SPENT:
            parts += ["price = { input = 1.0, output = 1.0 }", "limits = { daily = 0.0 }"]
            parts += ["max_output_tokens = 8192"]
        parts += ["[[models]]", f'name = "{name}"', "[[models.fallback]]"]
        parts += [f'provider = "{name}"', f'model = "{name}"']
    return "\n".join(parts) + "\n"


def _choose(conversation: str) -> dict[str, Any] | None:
    if NOTE in conversation:
        return None
    for client in all_clients():
        if client.call is not None and request_of(client) in conversation:
            return {"name": client.call.name, "arguments": client.call.arguments}
    return None


@pytest.fixture(scope="module", name="ill")
def _ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[IllProvider, HermaProcess]]:
    folder = tmp_path_factory.mktemp("ill")
    with ill_provider(_choose) as provider:
        config = folder / "herma.toml"
        config.write_text(_fleet(provider, folder))
        with herma_up(config) as herma:
            yield provider, herma


def _turn(
    environments: Path, client: Client, illness: str, provider: IllProvider, root_url: str
) -> Outcome:
    told: list[Asked] = []

    def note(asked: Asked) -> None:
        if asked.method == "POST" and not asked.went_well:
            told.append(asked)
            if illness in provider.illnesses:
                provider.illnesses[illness].heal()

    if illness in provider.illnesses:
        provider.illnesses[illness].fall_ill()
    with TemporaryDirectory(ignore_cleanup_errors=True) as home, recording_proxy(root_url) as proxy:
        proxy.on_end = note
        began = time.monotonic()
        place = ClientHome(environments, client, Path(home), proxy.root_url, illness)
        done = place.run(request_of(client), BOUND_S)
        lasted_s = time.monotonic() - began
        asked = [one for one in proxy.asked if (one.json or {}).get("tools")]
    return Outcome(
        client.name,
        illness,
        done.status == 0 and client.said in done.output,
        len(told),
        len(asked),
        lasted_s,
        done.output[-1500:] + done.errors[-1500:],
    )


def _clients() -> list[Client]:
    return [one for one in all_clients() if one.name in (*AGENTS, *SDKS)]


@pytest.mark.parametrize("client", _clients(), ids=lambda one: one.name)
def test_what_can_be_recovered_is(client: Client, ill: tuple[IllProvider, HermaProcess]) -> None:
    """Cut in four states, busy for 30 s in three statuses, a spent limit."""
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    environments = Path(os.environ["CLIENTS_DIR"]).absolute()
    if not is_installed(environments, client):
        pytest.skip(f"{client.name} is not installed")
    provider, herma = ill
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        jobs = [
            pool.submit(_turn, environments, client, illness, provider, herma.root_url)
            for illness in (*BUSY, *CUTS, SPENT)
        ]
        outcomes = []
        for job in as_completed(jobs):
            outcomes.append(job.result())
            print(outcomes[-1].row(), flush=True)
    for one in outcomes:
        _judge(client, one)


def _judge(client: Client, one: Outcome) -> None:
    if one.illness == SPENT:
        assert not one.is_recovered
        assert (one.num_asked == 1) == (client.name != DEAF), (one.row(), one.words)
        assert "limit" in one.words.lower(), one.words
    elif client.name in SDKS and one.illness in IN_STREAM:
        assert not one.is_recovered
        assert one.num_told == 1, one.row()
    else:
        assert one.is_recovered, (one.row(), one.words)
