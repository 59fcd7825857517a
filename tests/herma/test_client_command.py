"""`herma codex` and its siblings against a server that lists models."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from herma.cli import main
from tests.fakes.asgi import model_view
from tests.fakes.listed_models import ListedModels, running

KEY = "sk-herma-secret"
WINDOW = 40_960
FILES = {
    "codex": ".codex/config.toml",
    "claude-code": ".claude/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "qwen-code": ".qwen/settings.json",
    "hermes": ".hermes/config.yaml",
}
PROGRAMS = {"codex": "codex", "claude-code": "claude", "opencode": "opencode", "qwen-code": "qwen"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    others = ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "QWEN_HOME", "HERMES_HOME", "XDG_STATE_HOME")
    for name in (*others, "XDG_CONFIG_HOME", "OPENCODE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fleet(**more: Any) -> ListedModels:
    return ListedModels(
        model_view("org/alpha", context_length=WINDOW), model_view("beta", aliases=("b",)), **more
    )


def printed(
    client: str, gateway: ListedModels, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    assert main([client, "--url", gateway.root, *words]) == 0
    return capsys.readouterr().out


def test_codex_knows_the_window_and_compacts_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    """codex never asks a provider of one's own for them."""
    with running(fleet()) as gateway:
        config = tomllib.loads(printed("codex", gateway, capsys))
    assert config == {
        "model": "org/alpha",
        "model_provider": "herma",
        "model_context_window": WINDOW,
        "model_auto_compact_token_limit": WINDOW - WINDOW // 5,
        "model_providers": {
            "herma": {
                "name": "Herma",
                "base_url": f"{gateway.root}/v1",
                "wire_api": "responses",
                "stream_idle_timeout_ms": 600_000,
            }
        },
    }


def test_claude_code_gets_the_root_and_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    """No /v1, all its models by one name, and no million tokens."""
    with running(fleet()) as gateway:
        settings = json.loads(printed("claude-code", gateway, capsys))
    env = settings["env"]
    assert env["ANTHROPIC_BASE_URL"] == gateway.root
    assert env["ANTHROPIC_AUTH_TOKEN"] == "any"
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(WINDOW)
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == str(WINDOW // 5)
    assert env["ANTHROPIC_MODEL"] == env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "org/alpha"
    assert int(env["API_TIMEOUT_MS"]) > 600_000


def test_opencode_lists_all_models_with_their_windows(capsys: pytest.CaptureFixture[str]) -> None:
    """opencode's file lists all models with their windows, and no aliases; a model without a known
    window has no limit.
    """
    with running(fleet()) as gateway:
        config = json.loads(printed("opencode", gateway, capsys))
    provider = config["provider"]["herma"]
    assert config["model"] == "herma/org/alpha"
    assert provider["options"] == {"baseURL": f"{gateway.root}/v1", "apiKey": "any"}
    assert provider["models"]["org/alpha"]["limit"] == {"context": WINDOW, "output": WINDOW // 5}
    assert set(provider["models"]) == {"org/alpha", "beta"}


def test_qwen_code_gets_a_provider_with_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    """qwen-code gets a provider with the window, and a variable with any key, because it insists on
    one.
    """
    with running(fleet()) as gateway:
        settings = json.loads(printed("qwen-code", gateway, capsys))
    model = settings["modelProviders"]["openai"][0]
    assert (model["id"], model["baseUrl"]) == ("org/alpha", f"{gateway.root}/v1")
    assert model["generationConfig"]["contextWindowSize"] == WINDOW
    assert settings["env"] == {model["envKey"]: "any"}
    assert settings["model"] == {"name": "org/alpha"}
    assert settings["security"] == {"auth": {"selectedType": "openai"}}


@pytest.mark.parametrize("client", FILES)
def test_a_key_is_named_and_never_written(
    client: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads it from the same variable."""
    monkeypatch.setenv("MY_KEY", KEY)
    with running(fleet(key=KEY)) as gateway:
        text = printed(client, gateway, capsys, "--key-env", "MY_KEY")
        printed(client, gateway, capsys, "--key-env", "MY_KEY", "--write")
        assert main([client, "--url", gateway.root]) == 2
    assert "asks for an API key" in capsys.readouterr().err
    assert "MY_KEY" in text
    assert KEY not in text + (home / FILES[client]).read_text()


@pytest.mark.parametrize("client", FILES)
def test_write_makes_the_file_and_keeps_the_old_one(
    client: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new file is what is printed; the same again changes nothing; another gateway's leaves a
    backup.
    """
    path = home / FILES[client]
    with running(fleet()) as gateway:
        text = printed(client, gateway, capsys)
        printed(client, gateway, capsys, "--write")
        assert path.read_text() == text
        path.chmod(0o600)
        printed(client, gateway, capsys, "--write")
        assert list(path.parent.iterdir()) == [path]
    for number in (1, 2):
        with running(fleet()) as gateway:
            before = path.read_text()
            printed(client, gateway, capsys, "--write")
        end = "" if number == 1 else f"-{number}"
        assert path.with_name(f"{path.name}.before-herma{end}").read_text() == before
        assert gateway.root in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_the_user_has_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user has stays, in each kind of file."""
    theirs: dict[str, str] = {
        "codex": 'approval_policy = "never"\n[mcp_servers.files]\ncommand = "files"\n',
        "claude-code": '{"permissions": {"allow": ["Bash"]}, "env": {"EDITOR": "vi"}}',
        "opencode": '{"provider": {"own": {"name": "Own"}}, "theme": "dark"}',
        "qwen-code": '{"modelProviders": {"openai": [{"id": "theirs"}]}, "ui": {"theme": "dark"}}',
        "hermes": "terminal:\n  backend: local\n",
    }
    with running(fleet()) as gateway:
        for client, text in theirs.items():
            path = home / FILES[client]
            path.parent.mkdir(parents=True)
            path.write_text(text)
            printed(client, gateway, capsys, "--write")
    codex = tomllib.loads((home / FILES["codex"]).read_text())
    assert codex["mcp_servers"] == {"files": {"command": "files"}}
    assert codex["model"] == "org/alpha"
    claude = json.loads((home / FILES["claude-code"]).read_text())
    assert claude["permissions"] == {"allow": ["Bash"]}
    assert claude["env"]["EDITOR"] == "vi"
    opencode = json.loads((home / FILES["opencode"]).read_text())
    assert set(opencode["provider"]) == {"own", "herma"}
    qwen = json.loads((home / FILES["qwen-code"]).read_text())
    ids = [model["id"] for model in qwen["modelProviders"]["openai"]]
    assert ids == ["org/alpha", "beta", "theirs"]
    assert (home / FILES["hermes"]).read_text().startswith(theirs["hermes"])


def test_a_file_that_cannot_be_merged_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with its name and the reason, and no backup."""
    with running(fleet()) as gateway:
        for client, text in {
            "opencode": "// mine\n{}",
            "hermes": "model: gpt\n",
            "codex": "model_providers.herma.name = 'x'\n",
        }.items():
            path = home / FILES[client]
            path.parent.mkdir(parents=True)
            path.write_text(text)
            assert main([client, "--url", gateway.root, "--write"]) == 2
            assert str(path) in capsys.readouterr().err
            assert path.read_text() == text
            assert list(path.parent.iterdir()) == [path]


def test_an_unknown_window_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown window is reported, and no value is made up for it."""
    with running(ListedModels(model_view("far", context_length=None))) as gateway:
        assert main(["codex", "--url", gateway.root]) == 0
    said = capsys.readouterr()
    assert "model_context_window" not in tomllib.loads(said.out)
    assert "window of far is not known" in said.err


@pytest.mark.parametrize("client", PROGRAMS)
def test_run_becomes_the_client(client: str, home: Path) -> None:
    """`--run` becomes the client with the words behind `--`, and without a change of its file; the
    key is in a variable.
    """
    stub = home / "bin" / PROGRAMS[client]
    stub.parent.mkdir()
    out = home / "out.json"
    stub.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(out)!r}, 'w').write(json.dumps([sys.argv, dict(os.environ)]))\n"
    )
    stub.chmod(0o755)
    environ = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", "MY_KEY": KEY}
    with running(fleet(key=KEY)) as gateway:
        words = [client, "--url", gateway.root, "--key-env", "MY_KEY", "--", "-p", "say hello"]
        argv = [sys.executable, "-m", "herma", *words]
        subprocess.run(argv, env=environ, check=True)
    everything = out.read_text()
    given, variables = json.loads(everything)
    assert given[-2:] == ["-p", "say hello"]
    assert KEY not in " ".join(given)
    assert not (home / FILES[client]).exists()
    if client == "qwen-code":
        everything += Path(variables["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).read_text()
    assert gateway.root in everything
    assert str(WINDOW) in everything


def test_a_client_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is not there is one line with the command that installs it; Hermes reads its
    file alone.
    """
    monkeypatch.setenv("PATH", "/nowhere")
    with running(fleet()) as gateway:
        assert main(["codex", "--url", gateway.root, "--run"]) == 2
        assert "npm install" in capsys.readouterr().err
        assert main(["hermes", "--url", gateway.root, "--run"]) == 2
        assert "add --write" in capsys.readouterr().err
