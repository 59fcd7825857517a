"""`herma up --attach`, `herma init`: from a server that runs already to a configuration."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from config import find_mistakes, hash_api_key, parse_config
from herma.attach.asking import ask_server, root_of
from herma.attach.choices import text_of
from herma.attach.recognition import Answered, recognise
from herma.commands.init import run as init
from protocol.errors import ConfigError
from tests.fakes.foreign_engine import Settings, State, open_server
from tests.fakes.model_hub import model_hub
from tests.fakes.ports import free_ports
from workers.model_dir import builtin_dir

BOUND_S = 120.0
TINY = builtin_dir("builtin:herma-tiny")

NO_OPTIONS = Namespace(
    port=None, key=None,
    attach=None, attach_key_env=None, tokenizer=None, cloud=None, cloud_key_env=None,
    cloud_model=None, context_length=None, model=None, force=False,
)  # fmt: skip


def options(**given: Any) -> Namespace:
    return Namespace(**{**vars(NO_OPTIONS), **given})


@contextmanager
def running(**settings: Any) -> Iterator[str]:
    """A foreign engine; its address."""
    server = open_server("0", State(Settings(**settings)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answers(**paths: Any) -> dict[str, Answered]:
    names = {"models": "/v1/models", "version": "/version", "info": "/get_model_info"}
    names |= {"props": "/props", "ollama": "/api/version"}
    return {names[name]: Answered(200, body) for name, body in paths.items()}


def _listed(*ids: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", **more} for name in ids]}


@pytest.mark.parametrize(
    ("answers", "product", "engine", "source", "window"),
    [
        (
            _answers(
                models=_listed("q", owned_by="vllm", root="Qwen/Qwen3-8B", max_model_len=40960),
                version={"version": "0.26.0"},
            ),
            "vLLM", "vllm", "Qwen/Qwen3-8B", 40960,
        ),
        (
            _answers(
                models=_listed("q", owned_by="sglang", max_model_len=32768),
                info={"model_path": "/m/w", "tokenizer_path": "/m/t"},
            ),
            "SGLang", "sglang", "/m/t", 32768,
        ),
        (
            _answers(
                models=_listed("q.gguf", owned_by="llamacpp"),
                props={"default_generation_settings": {"n_ctx": 8192}},
            ),
            "llama.cpp", "llama-cpp", None, 8192,
        ),
        (
            _answers(models=_listed("qwen3:8b", owned_by="library"), ollama={"version": "0.14.0"}),
            "Ollama", "openai", None, None,
        ),
        (
            _answers(models=_listed("gpt-4o", owned_by="openai")),
            "an OpenAI-compatible server", "openai", None, None,
        ),
    ],
    ids=["vllm", "sglang", "llama.cpp", "ollama", "litellm"],
)  # fmt: skip
def test_engines_are_told_apart(
    answers: dict[str, Answered], product: str, engine: str, source: str | None, window: int | None
) -> None:
    server = recognise(answers)
    assert server is not None
    assert (server.product, server.engine) == (product, engine)
    assert (server.models[0].source, server.models[0].context_length) == (source, window)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v1/models": Answered(404, {"detail": "Not Found"})},
        {"/v1/models": Answered(200, None)},
        {"/v1/models": Answered(200, {"data": "x"})},
    ],
)
def test_other_servers_are_none(answers: dict[str, Answered]) -> None:
    assert recognise(answers) is None


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("h:8000", "http://h:8000"),
        ("https://h/x/v1", "https://h/x"),
    ],
)
def test_addresses_are_taken_with_and_without_v1(given: str, root: str) -> None:
    assert root_of(given) == root


@pytest.mark.parametrize("given", ["", "ftp://h", "http://h:x", "http://"])
def test_what_is_no_address_is_said(given: str) -> None:
    with pytest.raises(ConfigError, match="--attach"):
        root_of(given)


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(ConfigError, match=r"nothing answers at http.*start that server first"):
        ask_server(f"http://127.0.0.1:{free_ports(1)}", None)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that gives each GET the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b'{"error": {"message": "Loading model"}}', "503 (Loading model): it is not ready"),
        (502, b"<html>", "status 502: it is not ready yet; wait until it has loaded its model"),
        (500, b'{"detail": "no\\nroute"}', "500 (no route) and no list of models: is it a"),
        (404, b'{"error": "no such path"}', "404 (no such path) and no list of models"),
        (404, b'{"detail": "Not Found"}', 'with engine = "openai", url, model and context_length'),
        (200, b"[" * 100_000, "status 200 and no list of models"),
        (200, b'{"data": [{"id": "m"}', "status 200 and no list of models"),
    ],
)
def test_a_server_without_a_list_of_models_is_said(status: int, body: bytes, said: str) -> None:
    """One that still loads is another case than one with another API."""
    with answering(status, body) as root, pytest.raises(ConfigError) as caught:
        ask_server(root, None)
    assert said in str(caught.value)


@pytest.mark.parametrize("window", [10**15, int(1e30), 0, -1, True, "32768", None])
def test_a_window_that_is_none_is_not_taken(window: object) -> None:
    """1e30 is what a tokenizer says that has no limit; the file that was written did not load."""
    found = recognise(_answers(models=_listed("q", max_model_len=window)))
    assert found is not None
    assert found.models[0].context_length is None


def test_a_missing_key_is_named() -> None:
    with running(kind="vllm", key="secret") as url:
        with pytest.raises(ConfigError, match="--attach-key-env"):
            ask_server(url, None)
        assert ask_server(url, "secret").engine == "vllm"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_file_speaks_in_token_ids(kind: str) -> None:
    said: list[str] = []
    with running(kind=kind) as url:
        text = text_of(options(attach=[f"{url}/v1"]), said.append)
    config = parse_config(text, "f")
    assert (config.workers[0].engine, config.workers[0].model) == (kind, str(TINY))
    assert config.workers[0].url == url
    assert config.models[0].name == "there"
    assert "in token ids" in said[0]


def test_without_a_tokenizer_the_file_speaks_in_text() -> None:
    said: list[str] = []
    with running(kind="llama-cpp") as url:
        text = text_of(options(attach=[url]), said.append)
        by_hand = text_of(options(attach=[url], tokenizer=str(TINY)), said.append)
    config = parse_config(text, "f")
    assert (config.workers[0].engine, config.workers[0].model) == ("openai", "there")
    assert config.workers[0].context_length == 2048
    assert "in text" in said[0]
    assert parse_config(by_hand, "f").workers[0].engine == "llama-cpp"


def test_a_server_that_does_not_say_its_window_gets_one_that_starts(tmp_path: Path) -> None:
    """Said in a line and in the file; `--context-length` says it instead, up to what is told."""
    said: list[str] = []
    with running(kind="openai", tells_window=False) as url:
        text = text_of(options(attach=[url]), said.append)
        given = text_of(options(attach=[url], context_length=4096), said.append)
    assert "context_length = 32768  # set this: the server does not say" in text
    assert parse_config(text, "f").workers[0].context_length == 32768
    assert "context_length = 32768 is assumed" in said[1]
    assert parse_config(given, "f").workers[0].context_length == 4096
    assert len(said) == 3
    assert "window 4096" in said[2]
    with running(kind="vllm") as url:
        smaller = text_of(options(attach=[url], context_length=1024), said.append)
        assert parse_config(smaller, "f").workers[0].context_length == 1024
        with pytest.raises(ConfigError, match="--context-length 4096 is more than"):
            text_of(options(attach=[url], context_length=4096), said.append)


def test_servers_of_one_model_are_its_workers_and_the_cloud_stands_behind() -> None:
    with running(kind="vllm") as one, running(kind="sglang") as two:
        given = options(
            attach=[one, two], cloud="https://c.example/v1", cloud_key_env="K", cloud_model="x/y"
        )
        config = parse_config(text_of(given, lambda _: None), "f")
    assert [worker.serves for worker in config.workers] == ["there", "there"]
    assert len({worker.name for worker in config.workers}) == 2
    assert config.models[0].fallback[0].model == "x/y"
    assert config.providers["cloud"].api_key_env == "K"


def test_a_hub_id_comes_from_the_hub_with_its_small_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start reads the hub's cache: it works without the hub."""
    folder = tmp_path / "hub/own/tiny"
    folder.mkdir(parents=True)
    for path in TINY.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    program = 'import workers.model_dir as m; print(m.hub_text_files("own/tiny"))'
    environ = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    with model_hub(tmp_path / "hub") as hub:
        first = subprocess.run(
            [sys.executable, "-c", program], env={**environ, "HF_ENDPOINT": hub.url},
            capture_output=True, text=True, check=True, timeout=BOUND_S,
        )  # fmt: skip
        assert not any("safetensors" in name for name in hub.fetched)
    second = subprocess.run(
        [sys.executable, "-c", program], env={**environ, "HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True, text=True, check=True, timeout=BOUND_S,
    )  # fmt: skip
    assert first.stdout == second.stdout
    assert (Path(first.stdout.strip()) / "tokenizer.json").is_file()


def test_init_writes_a_private_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "herma.toml"
    with running(kind="vllm") as url:
        given = options(attach=[url], cloud="https://c.example/v1", output=path)
        assert init(given) == 0
        with pytest.raises(ConfigError, match="exists"):
            init(given)
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_mistakes(path.read_text(), "f") == []
    assert "herma up" in capsys.readouterr().out


@pytest.mark.parametrize("own", [False, True])
def test_init_writes_the_port_a_key_and_a_limit_to_uncomment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: bool
) -> None:
    """The secret is shown once, and the file has its hash; the comments are right as they are."""
    path = tmp_path / "herma.toml"
    with running(kind="vllm") as url:
        kind = {"model": "herma-tiny"} if own else {"attach": [url]}
        cloud = {"cloud": "https://c.example/v1"}
        assert init(options(**kind, **cloud, output=path, port=8123, key="laptop")) == 0
    text = path.read_text()
    config = parse_config(text, "f")
    assert config.gateway.port == 8123
    secret = capsys.readouterr().out.split()[-1]
    assert [(key.name, key.hash) for key in config.keys] == [("laptop", hash_api_key(secret))]
    assert secret not in text
    for name in ("price", "max_output_tokens", "limits"):
        text = text.replace(f"# {name} = ", f"{name} = ")
    assert find_mistakes(text, "f") == []
    cloud_table = parse_config(text, "f").providers["cloud"]
    assert cloud_table.limits.daily == 5.0
    assert cloud_table.max_output_tokens is not None


def test_init_says_what_it_needs_where_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(ConfigError, match="--attach URL"):
        init(options(output=tmp_path / "herma.toml"))


def test_init_for_the_own_engine(tmp_path: Path) -> None:
    path = tmp_path / "herma.toml"
    assert init(options(model="herma-tiny", cloud="https://c.example/v1", output=path)) == 0
    table = tomllib.loads(path.read_text())
    assert table["workers"][0]["model"] == "builtin:herma-tiny"
    assert table["models"][0]["fallback"][0]["provider"] == "cloud"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"])
def test_a_hub_id_and_both_forms_of_an_address_are_right_in_a_file(url: str) -> None:
    """The first file that people write for vLLM."""
    text = (
        '[[models]]\nname = "m"\n[[workers]]\nname = "w"\nengine = "vllm"\n'
        f'model = "Qwen/Qwen3-8B"\nurl = "{url}"\n'
    )
    assert find_mistakes(text, "f") == []
    assert parse_config(text, "f").workers[0].url == "http://127.0.0.1:8000"


def test_an_attached_server_answers_by_one_command(tmp_path: Path) -> None:
    """Real processes: a server that runs, `herma up --attach`, a chat."""
    with running(kind="openai") as url:
        argv = [sys.executable, "-m", "herma", "up", "--attach", url, "--port", "0"]
        pipe = subprocess.PIPE
        with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
            bound = threading.Timer(BOUND_S, process.kill)
            bound.start()
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready http://"), line
            body = {"model": "there", "messages": [{"role": "user", "content": "hi"}]}
            request = Request(
                f"{line.split()[1]}/chat/completions",
                json.dumps({**body, "max_tokens": 3}).encode(),
                {"content-type": "application/json"},
            )
            with urlopen(request, timeout=BOUND_S) as answer:
                assert json.load(answer)["choices"][0]["message"]["content"]
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate()
            bound.cancel()
    assert process.returncode == 0
    assert "an OpenAI-compatible server, model there" in log
