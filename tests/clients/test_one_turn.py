"""Each client of clients.toml, as it comes from npm or PyPI, makes one turn of its own with a tool.

The engine is scripted: it writes a call of one of the client's tools, the client runs it and sends
the result back. `make test-clients` installs the clients; what an installer refuses is skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.catalogue import Client, all_clients
from tests.clients.install import is_installed
from tests.clients.recording_proxy import RecordingProxy, recording_proxy
from tests.clients.turns import NOTE, run_turn, scripted_gateway
from tests.fakes.herma_process import HermaProcess

MIN_CACHED: Final = 0.9
"""The least cached share of the second request's prompt: all but the call and its result."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="herma")
def _herma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    with scripted_gateway(tmp_path_factory.mktemp("gateway")) as herma:
        yield herma


@pytest.mark.parametrize("client", all_clients(), ids=lambda one: one.name)
def test_a_turn_is_made(client: Client, herma: HermaProcess, tmp_path: Path) -> None:
    """The turn ends well with the model's last words, the tool's result was sent, and nothing was
    refused.
    """
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    environments = Path(os.environ["CLIENTS_DIR"]).absolute()
    if not is_installed(environments, client):
        pytest.skip(f"{client.name} is not installed")
    with recording_proxy(herma.root_url) as proxy:
        done = run_turn(environments, client, tmp_path, proxy)
    assert done.status == 0, (done.output[-2000:], done.errors[-2000:])
    assert client.said in done.output, (done.output[-2000:], done.errors[-2000:])
    failed = [one for one in proxy.asked if one.method == "POST" and not one.went_well]
    assert not failed, [(one.path, one.status, one.answer[:300]) for one in failed]
    _check_turns(client, proxy)
    print(f"{client.packages[0]}: passed, {len(proxy.turns())} requests", flush=True)


def _check_turns(client: Client, proxy: RecordingProxy) -> None:
    turns = proxy.turns()
    if client.call is None:
        assert turns
        return
    assert len(turns) >= 2
    assert NOTE.encode() in turns[1].body
