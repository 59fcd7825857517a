"""What real clients notice of engines that are killed in the middle of a call and of an answer.

Two workers, each of whose engines dies once in each of the two answers of a turn. The client must
get both answers whole, of one request each. `make test-clients` runs the clients.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.catalogue import Client, all_clients
from tests.clients.install import is_installed
from tests.clients.recording_proxy import recording_proxy
from tests.clients.turns import FLEET, MODEL, NOTE, ClientHome, call_rules, request_of
from tests.fakes.herma_process import herma_up

CLIENTS: Final = ("codex", "claude", "cline", "hermes", "openai-agents", "agno", "aider")
"""Responses, Messages and chats, streamed; Responses and chats in one piece; one without tools."""

TALE: Final = "one two three four five six seven eight nine ten eleven twelve"
SECOND: Final = """
[[workers]]
name = "b"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{script}"
"""
_DEATH: Final = {"die": "kill", "token_ms": 20}

pytestmark = pytest.mark.slow


def _rules(client: Client) -> list[dict[str, Any]]:
    """A call, in which the engine dies, then a tale, in which it dies again."""
    asked = request_of(client)
    tale = {"where": "prompt", "answer": f"{TALE}. {client.said}", "die_after_tokens": 12, **_DEATH}
    if client.call is None:
        return [{"contains": asked, **tale}]
    calls = call_rules(client.call, f"(?s)<tools>.*{asked}")
    return [
        {"matches": f"(?s){asked}.*{NOTE}", **tale},
        *({**rule, "die_after_tokens": 9, **_DEATH} for rule in calls),
    ]


def _clients() -> list[Client]:
    return [one for one in all_clients() if one.name in CLIENTS]


@pytest.mark.parametrize("client", _clients(), ids=lambda one: one.name)
def test_a_client_does_not_notice(client: Client, tmp_path: Path) -> None:
    """Every word once, one request for each answer, none that failed."""
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    environments = Path(os.environ["CLIENTS_DIR"]).absolute()
    if not is_installed(environments, client):
        pytest.skip(f"{client.name} is not installed")
    script, config = tmp_path / "script.json", tmp_path / "herma.toml"
    rules = [*_rules(client), {"answer": "Nothing to do."}]
    script.write_text(json.dumps({"rules": rules}))
    config.write_text((FLEET + SECOND).format(folder=tmp_path, script=script))
    with herma_up(config) as herma:
        herma.wait_models_ready({MODEL: 2})
        (tmp_path / "home").mkdir()
        with recording_proxy(herma.root_url) as proxy:
            home = ClientHome(environments, client, tmp_path / "home", proxy.root_url)
            done = home.run(request_of(client))
        resumed = herma.metrics()["herma_sequences_resumed_total"]
    assert done.status == 0, (done.output[-2000:], done.errors[-2000:])
    assert client.said in done.output, (done.output[-2000:], done.errors[-2000:])
    assert " ".join(done.output.split()).count(TALE) == 1, done.output[-2000:]
    num_answers = 1 if client.call is None else 2
    assert (len(proxy.turns()), resumed >= num_answers) == (num_answers, True)
    failed = [one for one in proxy.asked if one.method == "POST" and not one.went_well]
    assert not failed, [(one.path, one.status, one.answer[:300]) for one in failed]
