"""What the gateway's own command line makes of a configuration; nothing is started."""

from pathlib import Path

import pytest

from config import Config
from gateway.__main__ import _config, _parser
from protocol.errors import ConfigError

SEVERAL = '[gateway]\nprocesses = 4\nworker_bind = "tcp://127.0.0.1:8090"\n'


def _read(tmp_path: Path, *words: str) -> Config:
    path = tmp_path / "herma.toml"
    path.write_text(SEVERAL)
    return _config(_parser().parse_args(["--config", str(path), *words]))


def test_one_process_does_not_pass_for_several(tmp_path: Path) -> None:
    """A start of the module with several processes is refused, and the line names the command that
    starts several.
    """
    with pytest.raises(ConfigError, match="herma gateway"):
        _read(tmp_path)


def test_the_command_line_decides_how_many_there_are(tmp_path: Path) -> None:
    """One alone may also have what several cannot share out."""
    assert _read(tmp_path, "--process", "2/3").gateway.processes == 3
    bind = "tcp://127.0.0.1:*"
    gateway = _read(tmp_path, "--process", "0/1", "--worker-bind", bind).gateway
    assert (gateway.processes, gateway.worker_bind) == (1, bind)


def test_the_command_line_asks_for_lines_of_requests(tmp_path: Path) -> None:
    """The command line switches lines of requests on, which are off by default."""
    assert _read(tmp_path, "--process", "0/4").gateway.log == "events"
    assert _read(tmp_path, "--process", "0/4", "--log", "requests").gateway.log == "requests"


def test_a_seat_that_is_none_is_refused(tmp_path: Path) -> None:
    """An index of a process that is none is refused, with the form that it takes."""
    with pytest.raises(ConfigError, match="0/4"):
        _read(tmp_path, "--process", "3/3")
