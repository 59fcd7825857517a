"""`herma up --model DIR`: one model without a file, under its own name or a given one."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest

from config import builtin_config, builtin_models
from herma.checks import known_model
from herma.cli import main
from protocol.errors import ConfigError

TINY = builtin_models()["builtin:herma-tiny"]
BOUND_S = 120
WORKER = '[[workers]]\nname = "w"\nmodel = "builtin:herma-tiny"\nserves = "m"\n'


@pytest.mark.parametrize("word", ["herma-tiny", "builtin:herma-tiny"])
def test_a_built_in_model_needs_no_prefix(word: str) -> None:
    """A built-in model is found with and without its prefix."""
    assert known_model(word) == ("builtin:herma-tiny", "herma-tiny")


def test_a_directory_is_named_by_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is named by its last part, also the current one, and one whose path has the form
    of a hub id; a path that does not exist is a hub id.
    """
    folder = tmp_path / "models" / "Tiny-1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    known = (str(folder), "Tiny-1")
    assert known_model("models/Tiny-1") == known_model(f"{folder}/") == known
    monkeypatch.chdir(folder)
    assert known_model(".") == known
    assert known_model("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")


def test_the_configuration_serves_that_model_alone() -> None:
    """One worker and one model, with the limits of the default profile; a bad name is refused."""
    config = builtin_config("/models/m", "mine")
    (worker,), (model,) = config.workers, config.models
    assert (worker.model, worker.serves, model.name) == ("/models/m", "mine", "mine")
    assert worker.max_seqs is None
    with pytest.raises(ConfigError, match=r"'two words' cannot be .* \(--name NAME\)"):
        builtin_config("/models/m", "two words")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--name", "x"], "--name NAME needs --model DIR"),
        (["--config", "x.toml", "--model", "y"], "without --config FILE"),
        (["--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--model", "builtin:none"], "builtin:none"),
        (["--model", "herma-tiny", "--name", "two words"], "'two words'"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before anything starts."""
    assert main(["up", "--port", "0", *words]) == 2
    text = capsys.readouterr().err
    assert part in text
    assert text.count("\n") == 1


def test_a_directory_without_a_model_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is there to be served; a file's worker waits for its correction."""
    assert main(["up", "--port", "0", "--model", str(tmp_path)]) == 2
    path = tmp_path.resolve() / "config.json"
    said = capsys.readouterr().err
    assert said == f"herma: {path} does not exist: give a complete model directory\n"


def test_an_address_of_workers_that_is_taken_starts_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second start of the same file would load its models beside the first one's."""
    file = tmp_path / "herma.toml"
    with socket.socket(socket.AF_UNIX) as other, socket.create_server(("127.0.0.1", 0)) as taken:
        other.bind(str(tmp_path / "workers"))
        other.listen()
        for address in (f"ipc://{tmp_path}/workers", f"tcp://127.0.0.1:{taken.getsockname()[1]}"):
            file.write_text(f'[gateway]\nworker_bind = "{address}"\n{WORKER}')
            assert main(["up", "--port", "0", "--config", str(file)]) == 2
            text = capsys.readouterr().err
            assert "taken" in text
            assert text.count("\n") == 1


def test_a_directory_is_served_under_the_given_name(tmp_path: Path) -> None:
    """A real start: `ready`, the model by that name, and the table in the log."""
    folder = tmp_path / "copied"
    shutil.copytree(TINY, folder)
    words = ["up", "--model", folder, "--name", "org/mine", "--port", "0"]
    argv = [sys.executable, "-m", "herma", *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
        bound = threading.Timer(BOUND_S, process.kill)
        bound.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready http://"), line
        with urlopen(f"{line.split()[1]}/models", timeout=BOUND_S) as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["org/mine"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate()
        bound.cancel()
    assert process.returncode == 0
    rows = ("engine ", "weights ", "keys, values ", "sequences ", "window ", "budget ", "graphs ")
    for row in (*rows, "seconds "):
        assert log.count(f"INFO engine local: {row}") == 1, log
    assert "up to 16 at once" in log
