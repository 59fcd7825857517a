"""Versions on a host: their links, and which program a command becomes."""

from pathlib import Path

import pytest

from herma.entry import command_of, current_program
from housekeeping.own_code import HELD
from protocol.errors import ConfigError
from workers.versions import BASE, HERMA, Installation, InstalledVersion


def _installed(installation: Installation, *ids: str) -> None:
    """Versions whose environments have a program."""
    for at, version_id in enumerate(ids):
        program = installation.place(version_id) / "env" / "bin" / "herma"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        installation.add(InstalledVersion(version_id, "environment", made_at=float(at)))


def test_links_change_and_name_what_is_there(tmp_path: Path) -> None:
    """The version before is what the caller says, also none."""
    installation = Installation("x", tmp_path / "x")
    assert (installation.current(), installation.previous()) == (None, None)
    _installed(installation, "1.0+a/b", "2.0")
    assert [version.id for version in installation.versions()] == ["1.0+a/b", "2.0"]
    installation.switch("1.0+a/b", "")
    installation.switch("2.0", "1.0+a/b")
    current, previous = installation.current(), installation.previous()
    assert current is not None
    assert previous is not None
    assert (current.id, previous.id) == ("2.0", "1.0+a/b")
    with pytest.raises(ConfigError, match="`x` has no version 3"):
        installation.switch("3.0", "2.0")
    assert installation.current() == current
    installation.switch("", "")
    assert (installation.current(), installation.previous()) == (None, None)


@pytest.mark.parametrize("record", [b"{", b'{"id": "\xff"}'])
def test_a_version_exists_by_its_record_alone(tmp_path: Path, record: bytes) -> None:
    """A half-made one does not, and a broken record is said."""
    installation = Installation("x", tmp_path)
    (installation.place("1.0") / "env").mkdir(parents=True)
    assert installation.version("1.0") is None
    (installation.place("1.0") / "version.json").write_bytes(record)
    with pytest.raises(ConfigError, match="install it again"):
        installation.version("1.0")
    installation.remove("1.0")
    assert not installation.place("1.0").exists()


@pytest.fixture
def herma(tmp_path: Path) -> Installation:
    """Herma in an environment that somebody made, and in version 2.0, which is current."""
    installation = Installation(HERMA, tmp_path / "herma" / "versions" / HERMA)
    _installed(installation, "2.0")
    (tmp_path / "own" / "bin").mkdir(parents=True)
    installation.place(BASE).mkdir()
    (installation.place(BASE) / "env").symlink_to(tmp_path / "own")
    installation.add(InstalledVersion(BASE, "environment"))
    installation.switch("2.0", BASE)
    return installation


def test_a_state_directory_that_is_none_holds_no_versions(tmp_path: Path) -> None:
    """Each command then says itself what it lacks."""
    (tmp_path / "file").touch()
    assert current_program(["up"], {"XDG_STATE_HOME": str(tmp_path / "file")}, tmp_path) is None


def test_a_program_of_another_version_becomes_the_current_one(
    herma: Installation, tmp_path: Path
) -> None:
    """A program of another version, as one that a unit names, becomes the current one; after a
    rollback it stays.
    """
    environ, own = {"XDG_STATE_HOME": str(tmp_path)}, tmp_path / "own"
    program = herma.place("2.0") / "env" / "bin" / "herma"
    assert current_program(["--parent", "7", "worker"], environ, own) == program
    assert current_program(["--version"], environ, own) == program
    assert current_program(["up"], environ, herma.environment("2.0")) is None
    assert current_program(["up"], environ, herma.current_environment) is None
    herma.switch(BASE, "")
    assert current_program(["up"], environ, own) is None
    assert current_program(["up"], environ, herma.environment("2.0")) is not None


def test_what_stays_as_it_is(herma: Installation, tmp_path: Path) -> None:
    """A checkout, a worker on trial, the way back, and a user without a home."""
    environ, own = {"XDG_STATE_HOME": str(tmp_path)}, tmp_path / "own"
    assert herma.current() is not None
    assert current_program(["up"], environ, tmp_path / "checkout") is None
    assert current_program(["worker"], {**environ, HELD: "{}"}, own) is None
    assert current_program(["rollback", "stub"], environ, own) is None
    assert current_program(["up"], {}, own) is None
    assert current_program(["up"], {"XDG_STATE_HOME": str(tmp_path / "empty")}, own) is None


@pytest.mark.parametrize(
    ("words", "command"),
    [([], ""), (["-h"], ""), (["up", "rollback"], "up"), (["--parent", "7", "gateway"], "gateway")],
)
def test_the_command_of_a_line(words: list[str], command: str) -> None:
    """The command of a line may have options before it."""
    assert command_of(words) == command
