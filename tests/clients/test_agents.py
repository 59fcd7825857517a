"""codex, Claude Code and opencode, headless, as they come from npm, against a scripted engine.

Each makes one turn with a tool of its own: the model calls it, the agent runs it and sends the
result back. They know no other address than the gateway's: all else goes to a closed port.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.herma_process import HermaProcess, herma_up

BOUND_S = 120
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENTS_DIR", HERE.parents[1] / ".clients")).absolute()
CLOSED = "http://127.0.0.1:9"
FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "alpha"
aliases = ["claude-*"]

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{script}"
"""
OPENCODE: dict[str, Any] = {
    "model": "herma/alpha",
    "small_model": "herma/alpha",
    "autoupdate": False,
    "provider": {
        "herma": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"apiKey": "dummy"},
            "models": {"alpha": {"limit": {"context": 65_536, "output": 8_192}}},
        }
    },
}
CODEX = """
model = "alpha"
model_provider = "herma"

[analytics]
enabled = false

[model_providers.herma]
name = "Herma"
base_url = "{url}"
wire_api = "responses"
"""

pytestmark = pytest.mark.slow


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


def _run(folder: Path, argv: list[str | Path], **environ: str) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir()
    (work / "note.txt").write_text("a note\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HTTPS_PROXY": CLOSED,
        "HTTP_PROXY": CLOSED,
        "NO_PROXY": "127.0.0.1",
        **environ,
    }
    return subprocess.run(
        argv,
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def _num_answers(herma: HermaProcess) -> float:
    """Requests that ended well; there must be no others."""
    ends = {
        name: count
        for name, count in herma.metrics().items()
        if name.startswith("herma_requests_total") and count
    }
    assert all('status="200"' in name for name in ends), ends
    return sum(ends.values())


def test_codex_runs_a_command(herma: HermaProcess, tmp_path: Path) -> None:
    """codex runs a command by the Responses API: two requests, the command's output between
    them.
    """
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text(CODEX.format(url=herma.base_url))
    program = ENVIRONMENTS / "codex/node_modules/.bin/codex"
    done = _run(tmp_path, [program, "exec", "--skip-git-repo-check", "Use the shell"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "It is done."
    assert _num_answers(herma) == 2


COMPACTED = """
model = "alpha"
model_provider = "herma"
model_auto_compact_token_limit = 200

[analytics]
enabled = false

[model_providers.herma]
name = "OpenAI"
base_url = "{url}"
wire_api = "responses"
"""


def test_codex_survives_its_compaction(herma: HermaProcess, tmp_path: Path) -> None:
    """A provider called OpenAI has to compact for it: at a limit below the length of any prompt
    codex does that at once. The work goes on behind the summary, which it cannot read.
    """
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text(COMPACTED.format(url=herma.base_url))
    program = ENVIRONMENTS / "codex/node_modules/.bin/codex"
    done = _run(tmp_path, [program, "exec", "--skip-git-repo-check", "Use the shell"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "It goes on behind the summary."
    assert _num_answers(herma) >= 3


def test_claude_code_reads_a_file(herma: HermaProcess, tmp_path: Path) -> None:
    """Claude Code reads a file by the Messages API, under a model name that only the wildcard
    knows.
    """
    program = ENVIRONMENTS / "claude/node_modules/.bin/claude"
    done = _run(
        tmp_path,
        [program, "-p", "--bare", "Read the note"],
        ANTHROPIC_BASE_URL=herma.root_url,
        ANTHROPIC_API_KEY="dummy",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "It is done."
    assert _num_answers(herma) >= 2  # it also asks for things of its own


def test_opencode_runs_a_command(herma: HermaProcess, tmp_path: Path) -> None:
    """opencode runs a command by chat completions, and also asks for a title."""
    config = deepcopy(OPENCODE)
    config["provider"]["herma"]["options"]["baseURL"] = herma.base_url
    path = tmp_path / "opencode.json"
    path.write_text(json.dumps(config))
    program = ENVIRONMENTS / "opencode/node_modules/.bin/opencode"
    done = _run(tmp_path, [program, "run", "Print the note"], OPENCODE_CONFIG=str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "It is done."
    assert "cat note.txt" in done.stderr
    assert _num_answers(herma) >= 2


ASKED = {
    "shell": "asked ['cat note.txt', 'pwd']",
    "local_shell": "asked ['cat', 'note.txt']",
    "apply_patch": "asked create_file a.py '+x = 1'",
}


@pytest.mark.parametrize("tool", sorted(ASKED))
def test_own_tools_of_the_responses_api_run_at_the_client(
    herma: HermaProcess, tmp_path: Path, tool: str
) -> None:
    """openai-agents runs the tools: the model calls a function, the client gets the item that it
    knows, and the model its result.
    """
    program = ENVIRONMENTS / "openai-agents/bin/python"
    argv: list[str | Path] = [program, HERE / "drive_own_tools.py", tool, herma.base_url]
    done = _run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [ASKED[tool], "It is done."]
    assert _num_answers(herma) == 2
