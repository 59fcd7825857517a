"""Real agents, run by `herma codex` and its siblings, one turn with a tool.

As in `test_agents`, but nobody writes a configuration: the commands ask the gateway.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_agents import ENVIRONMENTS, FLEET, HERE, _num_answers, _run
from tests.fakes.herma_process import HermaProcess, herma_up

pytestmark = pytest.mark.slow

WORDS = {
    "codex": ("exec", "--skip-git-repo-check", "Use the shell"),
    "claude-code": ("-p", "--bare", "Read the note"),
    "opencode": ("run", "Print the note"),
    "qwen-code": ("-p", "Say that it is done"),
}
FOLDERS = {"codex": "codex", "claude-code": "claude", "opencode": "opencode", "qwen-code": "qwen"}


@pytest.fixture
def herma(tmp_path: Path) -> Iterator[HermaProcess]:
    """A gateway without keys, whose model answers by the script."""
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    config = tmp_path / "herma.toml"
    config.write_text(FLEET.format(folder=tmp_path, script=HERE / "agents.toml"))
    with herma_up(config) as herma:
        herma.wait_models_ready({"alpha": 1})
        yield herma


@pytest.mark.parametrize("client", WORDS)
def test_the_command_runs_the_client(client: str, herma: HermaProcess, tmp_path: Path) -> None:
    """The client that the command runs answers at the first try, from an empty home."""
    programs = ENVIRONMENTS / FOLDERS[client] / "node_modules/.bin"
    if not programs.exists():
        pytest.skip(f"{client} is not installed in {programs}")
    path = f"{programs}:{os.environ['PATH']}"
    root = str(HERE.parents[1])
    argv: list[str | Path] = [sys.executable, "-m", "herma", client, "--url", herma.root_url]
    done = _run(tmp_path, [*argv, "--", *WORDS[client]], PATH=path, PYTHONPATH=root)
    assert done.returncode == 0, done.stderr
    expected = "Nothing to do." if client == "qwen-code" else "It is done."
    assert expected in done.stdout
    assert _num_answers(herma) >= 1
