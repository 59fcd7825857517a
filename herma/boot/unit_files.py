"""Reads systemd units: the command of each, and the environment in which a boot runs it.

Owns the parsing of the settings that our units use. Must not start anything.
"""

import pwd
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

PATTERN: Final = "herma-*.service"
_BOOT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class BootUnit:
    """One unit. `argv` is its ExecStart, `environ` the whole environment of a start at boot."""

    name: str
    argv: tuple[str, ...]
    environ: dict[str, str]
    folder: str

    def option(self, flag: str) -> str | None:
        """The value of an option in the unit's command."""
        words = dict(zip(self.argv, self.argv[1:], strict=False))
        return words.get(flag)


def read_units(folder: Path, user: pwd.struct_passwd, runtime_dir: str | None) -> list[BootUnit]:
    """Herma's units in `folder`, the gateway first. Units without `User=` run as `user`, with
    `runtime_dir` as XDG_RUNTIME_DIR. Raises `ConfigError` if there is none, or one is broken.
    """
    paths = sorted(folder.glob(PATTERN), key=lambda path: ("gateway" not in path.name, path.name))
    if not paths:
        raise ConfigError(f"{folder} has no unit {PATTERN}; `herma systemd` writes them")
    return [_read(path, user, runtime_dir) for path in paths]


def _read(path: Path, user: pwd.struct_passwd, runtime_dir: str | None) -> BootUnit:
    try:
        lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    pairs = [line.strip().partition("=")[::2] for line in lines if line.strip()[:1] not in "#;"]
    settings = dict(pairs)
    if settings.get("User", user.pw_name) != user.pw_name:
        raise ConfigError(
            f"{path} runs as {settings['User']}: run the drill as that user, or as it with sudo -u"
        )
    environ = {
        "PATH": _BOOT_PATH,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
    }
    if runtime_dir is not None:
        environ["XDG_RUNTIME_DIR"] = runtime_dir
    for key, value in pairs:
        if key == "Environment":
            environ.update(_pair(word) for word in _words(path, value))
        elif key == "EnvironmentFile":
            environ.update(_environment_file(path, value))
    argv = tuple(word.replace("$$", "$") for word in _words(path, settings.get("ExecStart", "")))
    if not argv:
        raise ConfigError(f"{path} has no ExecStart; write it again with `herma systemd`")
    return BootUnit(path.name, argv, environ, settings.get("WorkingDirectory", "/"))


def _words(path: Path, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {text}: {error}") from error
    for word in words:
        if "%" in word.replace("%%", ""):
            raise ConfigError(f"{path}: {word} has a specifier, which the drill does not know")
    return [word.replace("%%", "%") for word in words]


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def _environment_file(unit: Path, value: str) -> Iterator[tuple[str, str]]:
    """The variables of an EnvironmentFile. A file whose name begins with `-` may be missing."""
    path = Path(value.removeprefix("-").replace("%%", "%"))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        if value.startswith("-"):
            return
        raise ConfigError(f"{unit}: EnvironmentFile {path}: {error.strerror}") from error
    for line in text.splitlines():
        if "=" in line and line.strip()[:1] not in "#;":
            name, quoted = _pair(line.strip())
            yield name, "".join(shlex.split(quoted))
