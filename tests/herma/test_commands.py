"""The commands as a person runs them: one clear line and status 2 for every mistake.

What a command refuses before it starts anything is asked of `main` in this process, which spares
the start of another.
"""

import argparse
import io
import os
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from config import hash_api_key, parse_config
from herma.cli import command_parser, main
from housekeeping.own_code import HELD
from tests.fakes.ports import free_ports

BOUND_S = 60

WORKER = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "{model}"
"""


def _herma(
    *words: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "herma", *map(str, words)]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=BOUND_S, env=env, check=False
    )


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Run:
    """As `_herma`, in this process."""

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        argv = [*map(str, words)]
        status = _status(argv)
        assert isinstance(status, int)
        return subprocess.CompletedProcess(argv, status, *capsys.readouterr())

    return run


def _refusal(*words: str | Path, run: Run = _herma) -> str:
    done = run(*words)
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    said = [line for line in lines if line.startswith("herma: ")]
    assert len(said) == 1, lines
    assert not [line for line in lines if "Traceback" in line]
    return said[0]


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "herma.toml"
    path.write_text(text)
    return path


def test_help_lists_every_command() -> None:
    """`herma --help` lists the commands."""
    done = _herma("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("up", "gateway", "worker", "config", "keys"))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


def test_every_command_and_option_says_what_it_is_for() -> None:
    """A text for each, and names and texts of commands on one line."""
    for parser in _parsers(command_parser()):
        assert parser.description, parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                lines = [line.split() for line in parser.format_help().splitlines()]
                assert all([name] not in lines for name in action.choices), parser.prog
            elif action.dest not in ("worker", "file"):
                assert action.help, (parser.prog, action.dest)


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    """A reader that leaves ends a command quietly, as in `herma grafana | head -1`."""
    with subprocess.Popen(
        [sys.executable, "-m", "herma", "grafana"], stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=BOUND_S)
    assert (process.returncode, err) == (141, "")


def test_a_full_disk_and_a_directory_that_is_gone_are_one_line(tmp_path: Path) -> None:
    """A full disk and a directory that is gone are one line, whatever a command prints or
    begins.
    """
    argv = [sys.executable, "-m", "herma"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*argv, "grafana"], stdout=full, stderr=PIPE, text=True, check=False)
    assert done.stderr == "herma: cannot write the output: No space left on device\n"
    assert done.returncode == 1
    folder = tmp_path / "gone"
    folder.mkdir()
    words = shlex.join([*argv, "systemd", "--output", str(tmp_path)])
    script = f"cd {folder}; rmdir {folder}; exec {words}"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, env=environ
    )
    assert done.stderr == "herma: the current directory is gone: change to another\n"
    assert done.returncode == 2


def test_no_command_shows_the_help() -> None:
    """A bare `herma` prints the help with status 0."""
    done = _herma()
    assert done.returncode == 0
    assert done.stdout == _herma("--help").stdout


@pytest.mark.parametrize("port", ["99999", "-1", "abc"])
def test_a_port_that_is_none_is_refused(here: Run, port: str) -> None:
    """A number over 65535 would wrap around to some other port."""
    done = here("up", f"--port={port}")
    assert done.returncode == 2
    assert f"'{port}' is not a port" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("upp",), "herma: error: there is no command 'upp': did you mean up?"),
        (("deploy",), "herma: error: there is no command 'deploy': `herma --help` lists them"),
        (("serve",), "herma: error: there is no command 'serve': did you mean up?"),
        (("start", "--port", "1"), "there is no command 'start': did you mean up?"),
        (("ps",), "herma: error: there is no command 'ps': did you mean status?"),
        (("check", "herma.toml"), "there is no command 'check': did you mean config check?"),
        (("worker", "start"), "there is no action 'start': did you mean restart?"),
        (
            ("keys",),
            "error: it needs an action: new, curve; `herma keys --help` lists the options",
        ),
        (("config", "chek"), "there is no action 'chek': did you mean check?"),
        (("up", "herma.toml"), "arguments: herma.toml (the file is named by --config FILE)"),
        (("up", "--prot", "1"), "herma up: error: there is no option --prot: did you mean --port?"),
        (
            ("config", "check", "--zzz=1"),
            "no option --zzz: `herma config check --help` lists them",
        ),
        (("--zzz",), "herma: error: there is no option --zzz: `herma --help` lists them"),
        (("worker", "slep", "a"), "there is no action 'slep': did you mean sleep?"),
        (
            ("status", "gpu0"),
            "unrecognized arguments: gpu0; `herma status --help` lists the options",
        ),
        (("up", "--port"), "expected one argument; `herma up --help` lists the options"),
    ],
)
def test_a_wrong_command_is_told_which_was_meant(
    words: tuple[str, ...], said: str, here: Run
) -> None:
    """The error of a wrong command says which was meant, in one line, without the usage, which
    buries it.
    """
    done = here(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(said)


@pytest.mark.parametrize("path", ["/proc/herma.toml", "/dev/null/herma.toml", f"/{'x' * 300}"])
def test_a_file_that_cannot_be_written_is_named(path: str, here: Run) -> None:
    done = here("init", "--model", "builtin:herma-tiny", "--output", path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("herma: ")
    assert path[:9] in line


@pytest.mark.parametrize(
    ("words", "serves"),
    [
        ((), "`herma up` serves it"),
        (("--output", "./herma.toml"), "`herma up` serves it"),
        (("--output", "other.toml"), "`herma up --config other.toml` serves it"),
        (("--output", "folder/herma.toml"), "`herma up --config folder/herma.toml` serves it"),
    ],
)
def test_a_file_that_was_written_is_served_as_said(
    words: tuple[str, ...], serves: str, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`herma up` finds only `herma.toml`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    done = here("init", "--model", "builtin:herma-tiny", *words)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith(serves)


def test_config_check_says_what_is_set_up(here: Run, tmp_path: Path) -> None:
    """A valid file is summarised; nothing is started."""
    done = here("config", "check", _file(tmp_path, WORKER.format(folder=tmp_path, model="/m")))
    assert done.returncode == 0
    assert "ok" in done.stdout
    assert "w: /m as m" in done.stdout


def test_config_check_notes_what_this_host_lacks(here: Run, tmp_path: Path) -> None:
    """A missing directory and a model without a worker are notes, not mistakes: the file may be for
    several hosts.
    """
    text = WORKER.format(folder=tmp_path, model="/m") + 'serves = "m"\n[[models]]\nname = "n"'
    done = here("config", "check", _file(tmp_path, text))
    assert done.returncode == 0
    notes = [line for line in done.stdout.splitlines() if line.startswith("  note ")]
    assert len(notes) == 2, done.stdout
    assert "on this host model '/m'" in notes[0]
    assert "`n`" in notes[1]


@pytest.mark.parametrize("model", ["/no/such/model", "./none", "~/no/such/model"])
def test_up_without_its_model_directory_is_one_line(here: Run, tmp_path: Path, model: str) -> None:
    """Nothing starts for a wrong path, so nothing else is printed."""
    config = _file(tmp_path, WORKER.format(folder=tmp_path, model=model))
    done = here("up", "--config", config)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("herma: ")
    assert model in line


def test_up_with_a_wrong_script_is_one_line(here: Run, tmp_path: Path) -> None:
    """`herma up` with a wrong script is one line before anything starts, as its page says."""
    (tmp_path / "script.toml").write_text('[[rules]]\nanswr = "yes"')
    text = WORKER.format(folder=tmp_path, model="builtin:herma-tiny")
    text += f'engine = "scripted"\nscript = "{tmp_path}/script.toml"'
    done = here("up", "--config", _file(tmp_path, text))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "rule 1: unknown key `answr`; did you mean `answer`?" in line


def test_up_on_a_taken_port_is_one_line() -> None:
    """Nothing starts for a port that another program has."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = _herma("up", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    "command", [("up", "--config"), ("gateway", "--config"), ("config", "check")]
)
def test_a_misspelt_key_is_named_by_every_command(
    here: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Every command that reads the file refuses it with the nearest known key and the line."""
    text = WORKER.format(folder=tmp_path, model="/m") + "max_seq = 4\n"
    said = _refusal(*command, _file(tmp_path, text), run=here)
    assert "`max_seq`" in said
    assert "`max_seqs`" in said
    assert "herma.toml:12" in said


def test_a_port_already_taken_is_named() -> None:
    """A second gateway on a port says so, and `herma up` stops its children and ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in _refusal(
            "gateway", "--port", str(port), "--worker-bind", "tcp://127.0.0.1:*"
        )
        assert str(port) in _refusal("up", "--port", str(port))


def test_a_worker_port_already_taken_is_named() -> None:
    """The address that workers dial is checked as the one for clients is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        assert str(port) in _refusal("gateway", "--port", "0", "--worker-bind", address)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ('worker_bind = "tcp://127.0.0.1:{port}"', ", process {pid}; stop it or choose"),
        ('worker_bind = "ipc://{folder}/none/workers"', "No such file"),
    ],
)
def test_an_address_of_workers_that_cannot_be_is_one_line_of_up(
    tmp_path: Path, key: str, says: str
) -> None:
    """The worker started beside it says nothing of its end: it had nothing to finish."""
    worker = '[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "builtin:herma-tiny"\n'
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = key.format(port=taken.getsockname()[1], folder=tmp_path)
        config = _file(tmp_path, f"[gateway]\nport = 0\n{line}\n{worker}")
        done = _herma("up", "--config", config)
    assert done.returncode == 2
    # Remains of other processes on this machine may be removed meanwhile, and where the gateway is
    # slow to fail, the worker has come far enough to dial it or to load its model.
    early = "of dead processes", "the handshake broke off", "has not answered", "INFO engine w: "
    lines = done.stderr.splitlines()
    (said,) = [line for line in lines if not any(text in line for text in early)]
    assert said.startswith("herma: ")
    assert says.format(pid=os.getpid()) in said


def test_several_processes_say_in_one_line_what_is_wrong() -> None:
    """Several processes say in one line what is wrong before any of them starts: an invalid number,
    a worker address that they cannot share, a taken port that the second one needs.
    """
    done = _herma("up", "--processes", "0")
    assert done.returncode == 2
    assert "use 1 to 64" in done.stderr
    several = ("gateway", "--port", "0", "--processes", "2", "--worker-bind")
    assert "name a port" in _refusal(*several, "tcp://127.0.0.1:*")
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        assert f"port {port + 1} " in _refusal(*several, f"tcp://127.0.0.1:{port}")


def test_a_public_bind_without_keys_is_refused(here: Run, tmp_path: Path) -> None:
    """A public bind for clients or workers needs keys."""
    public = _file(tmp_path, '[gateway]\nhost = "0.0.0.0"')
    assert "[[keys]]" in _refusal("up", "--config", public, run=here)
    address = "tcp://0.0.0.0:0"
    public = _file(tmp_path, f'[gateway]\nworker_bind = "{address}"')
    assert "curve_secret_file" in _refusal("gateway", "--config", public)
    assert "public" in _refusal("gateway", "--port", "0", "--worker-bind", address)


def test_a_worker_that_is_not_in_the_file_is_named(here: Run, tmp_path: Path) -> None:
    """`herma worker --name` refuses a name that the file does not have, and lists those it has."""
    config = _file(tmp_path, WORKER.format(folder=tmp_path, model="/m"))
    said = _refusal("worker", "--config", config, "--name", "x", run=here)
    assert "`x`" in said
    assert "w" in said


def test_a_provider_key_that_is_missing_is_named(tmp_path: Path) -> None:
    """A gateway does not start without the key of a provider that it may need."""
    text = '[providers.p]\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = "NO_SUCH_KEY"'
    assert "NO_SUCH_KEY" in _refusal("gateway", "--config", _file(tmp_path, text))


def test_a_new_key_fits_the_configuration(here: Run) -> None:
    """`herma keys new` prints a secret once, and the table that accepts it."""
    lines = here("keys", "new", "alice").stdout.splitlines()
    secret = lines[0].rpartition(" ")[2]
    (key,) = parse_config("\n".join(lines[1:]), "printed").keys
    assert key.name == "alice"
    assert key.hash == hash_api_key(secret)


@pytest.mark.parametrize("name", ["", 'a"b', "two words", "x" * 129])
def test_a_name_that_no_file_may_hold_gets_no_key(here: Run, name: str) -> None:
    """What `herma keys new` prints is always accepted by `herma config check`."""
    assert "cannot name a key" in _refusal("keys", "new", name, run=here)


def test_a_curve_pair_is_private_and_never_overwritten(here: Run, tmp_path: Path) -> None:
    """The secret file is for its owner only, and a second call does not replace it."""
    path = tmp_path / "gateway.key"
    done = here("keys", "curve", path)
    assert done.returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public = done.stdout.split()[-1]
    assert public not in _refusal("keys", "curve", path, run=here)


@pytest.mark.parametrize("words", [["worker", "--config", "/nowhere/herma.toml"], ["no-command"]])
def test_what_a_version_on_trial_explains_is_not_final(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2 would end `herma up`, and its parent is to start the version from before."""
    monkeypatch.setenv(HELD, "{}")
    assert _status(words) == 1
    monkeypatch.delenv(HELD)
    assert _status(words) == 2


def _status(words: list[str]) -> int | str | None:
    try:
        return main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("words", [(), ("engine", "--model", "m"), ("later-one",)])
def test_an_installed_herma_says_where_the_benchmarks_are(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installed Herma says where the benchmarks are: they and their options are not in the
    wheel, so any words get the same line.
    """
    monkeypatch.setattr("herma.commands.bench.find_spec", lambda _: None)
    assert main(["bench", *words]) == 2
    assert "the benchmarks are in the source tree" in capsys.readouterr().err


class _Terminal(io.StringIO):
    """A terminal whose user presses Ctrl-D behind what is written here."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["", "\nherma-tiny\n"])
def test_ctrl_d_at_a_question_is_no_fault(
    typed: str, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and one line says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    done = here("init")
    assert done.returncode == 2
    assert done.stderr == "herma: no answer was given, so nothing is done\n"
    assert not [*tmp_path.iterdir()]
