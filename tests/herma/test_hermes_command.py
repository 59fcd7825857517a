"""`herma hermes` against real servers: the block, and one line for every mistake."""

import socket
from pathlib import Path
from typing import Any

import pytest

from herma.cli import main
from tests.fakes.asgi import model_view
from tests.fakes.listed_models import ListedModels as Gateway
from tests.fakes.listed_models import running

KEY = "sk-herma-secret"


def parsed(text: str) -> dict[str, Any]:
    """The YAML that we write: nested maps by two spaces, and maps of one line."""
    root: dict[str, Any] = {}
    stack = [root]
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, value = line.strip().partition(":")
        value = value.split(" #")[0].strip()
        del stack[depth + 1 :]
        stack[depth][name] = value or {}
        if not value:
            stack.append(stack[depth][name])
    return root


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["hermes", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    return said.err


def test_the_block_names_the_gateway_and_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    """The first model is the default, all are listed, and a URL without a path gets /v1."""
    with running(Gateway(model_view("qwen3:8b"), model_view("org/beta"))) as gateway:
        assert main(["hermes", "--url", gateway.root]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    block = parsed(said.out)
    assert block["model"] == {"default": "qwen3:8b", "provider": "herma"}
    assert block["providers"]["herma"] == {
        "name": "herma",
        "base_url": f"{gateway.root}/v1",
        "api_key": "any",
        "transport": "chat_completions",
        "models": "{qwen3:8b: {}, org/beta: {}}",
    }


def test_names_that_yaml_misreads_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """A number or a word of YAML stays a name."""
    with running(Gateway(model_view("7"), model_view("no"), model_view("a:"))) as gateway:
        assert main(["hermes", "--url", gateway.root]) == 0
    assert 'models: {"7": {}, "no": {}, "a:": {}}' in capsys.readouterr().out


def test_a_key_is_named_and_never_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hermes reads it from the same variable."""
    monkeypatch.setenv("HERMA_TEST_KEY", KEY)
    with running(Gateway(model_view(), key=KEY)) as gateway:
        assert main(["hermes", "--url", gateway.root, "--key-env", "HERMA_TEST_KEY"]) == 0
        out = capsys.readouterr().out
        assert parsed(out)["providers"]["herma"]["key_env"] == "HERMA_TEST_KEY"
        assert KEY not in out
        assert "asks for an API key" in refusal(capsys, "--url", gateway.root)
        monkeypatch.delenv("HERMA_TEST_KEY")
        words = ("--url", gateway.root, "--key-env", "HERMA_TEST_KEY")
        assert "is not set" in refusal(capsys, *words)


def test_the_default_is_chosen_by_name_or_alias(capsys: pytest.CaptureFixture[str]) -> None:
    """Aliases are listed after the models; an unknown name is refused."""
    with running(Gateway(model_view("alpha"), model_view("beta", aliases=("b",)))) as gateway:
        assert main(["hermes", "--url", gateway.root, "--model", "beta"]) == 0
        assert parsed(capsys.readouterr().out)["model"]["default"] == "beta"
        assert main(["hermes", "--url", gateway.root, "--model", "b"]) == 0
        block = parsed(capsys.readouterr().out)
        assert block["model"]["default"] == "b"
        assert block["providers"]["herma"]["models"] == "{alpha: {}, beta: {}, b: {}}"
        told = refusal(capsys, "--url", gateway.root, "--model", "gamma")
        assert "no model 'gamma'; it serves alpha, beta, b" in told


def test_a_window_that_hermes_refuses_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The block is printed all the same: the window may be configured."""
    with running(Gateway(model_view(context_length=32_768))) as gateway:
        assert main(["hermes", "--url", gateway.root]) == 0
    said = capsys.readouterr()
    assert "32,768 tokens, and Hermes needs 64,000" in said.err
    assert parsed(said.out)["model"]["default"] == "alpha"


def test_without_a_gateway_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No server, another server, or no models: each error has its remedy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "start one with `herma up`" in refusal(capsys, "--url", f"http://127.0.0.1:{port}")
    assert "--url takes a URL" in refusal(capsys, "--url", "localhost:8080")
    with running(Gateway()) as gateway:
        assert "serves no model yet" in refusal(capsys, "--url", gateway.root)
        assert "answers 404" in refusal(capsys, "--url", f"{gateway.root}/other")
    for body in (b"<html>", b'{"data": [{"id": "\xff"}]}'):
        with running(Gateway(body=body)) as gateway:
            assert "does not answer like" in refusal(capsys, "--url", gateway.root)


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The block in docs/clients/hermes.md, for a gateway that was just started."""
    with running(Gateway(model_view("herma-tiny"))) as gateway:
        assert main(["hermes", "--url", gateway.root]) == 0
        printed = capsys.readouterr().out.replace(gateway.root, "http://127.0.0.1:8080")
    page = Path(__file__).parents[2] / "docs/clients/hermes.md"
    assert f"```yaml\n{printed}```" in page.read_text(encoding="utf-8")
