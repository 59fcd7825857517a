"""`herma systemd`: write the units that start Herma at boot.

Owns where they are written, and the printed next steps.
"""

import argparse
import os
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from config import Config, builtin_config, load_config
from herma.boot import (
    UnitOptions,
    enabling,
    file_in,
    is_edited,
    needed_variables,
    removing,
    unit_files,
    with_digest,
)
from protocol.errors import ConfigError
from workers.versions import HERMA, installation_of

SYSTEM_UNITS: Final = Path("/etc/systemd/system")


def run(arguments: argparse.Namespace) -> int:
    """Write the units and print the commands that enable them and that remove them again; with
    `--dry-run` print the units alone. Raises `ConfigError`.
    """
    config, path = read_config(arguments.config)
    for name in arguments.worker or ():
        if config.worker(name) is None:
            raise ConfigError(f"no [[workers]] table is named `{name}`")
    options = UnitOptions(
        python=lasting_python(os.environ),
        config=path,
        user=None if arguments.user else user().pw_name,
        folder=Path.cwd() if path is None else path.parent,
        state=os.environ.get("XDG_STATE_HOME"),
    )
    folder = units_folder(is_user=arguments.user)
    if arguments.output is not None:
        folder = arguments.output.absolute()
    units = unit_files(config, options, arguments.worker or ())
    if arguments.dry_run:
        shown = (f"# {folder / name}\n{with_digest(text)}" for name, text in units.items())
        print("\n".join(shown), end="")
        return 0
    if not arguments.force:
        _check_owner(folder, units)
    write_files(folder, units, may_overwrite=arguments.force)
    if variables := needed_variables(config):
        print(f"set {', '.join(variables)} in {options.env_file}, one NAME=VALUE a line, mode 0600")
    # systemd knows files of other folders by their paths alone.
    named = [*units] if arguments.output is None else [str(folder / name) for name in units]
    print("\n".join(enabling(named, is_user=arguments.user)))
    if not arguments.user:
        print("HERMA_RUNTIME_DIR=/run/herma herma worker status   # the units' workers")
    print(removing(folder, list(units), is_user=arguments.user))
    return 0


def lasting_python(environ: Mapping[str, str]) -> str:
    """This process's Python. For an environment that an upgrade may replace, the path of the
    current one, which stays valid. Raises `ConfigError` without a home.
    """
    installation = installation_of(HERMA, environ)
    if installation.has_environment(Path(sys.prefix)):
        return str(installation.current_environment / "bin" / "python")
    return sys.executable


def read_config(path: Path | None) -> tuple[Config, Path | None]:
    """The configuration and the file's absolute path. Raises `ConfigError`."""
    if path is None:
        return builtin_config(), None
    return load_config(path), path.resolve()


def units_folder(*, is_user: bool) -> Path:
    if not is_user:
        return SYSTEM_UNITS
    home = os.environ.get("XDG_CONFIG_HOME") or f"{user().pw_dir}/.config"
    return Path(home) / "systemd" / "user"


def user() -> pwd.struct_passwd:
    """The user of this process; with sudo, the one that called it. Raises `ConfigError`."""
    name = os.environ.get("SUDO_USER")
    try:
        return pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise ConfigError(f"this user has no entry in the password file: {error}") from error


def write_files(folder: Path, files: Mapping[str, str], *, may_overwrite: bool) -> None:
    """Write the files that differ, and print which. Raises `ConfigError`, before the first is
    written for those that somebody has edited, unless it `may_overwrite` them.
    """
    found = {name: _read(folder / name) for name in files}
    edited = [
        name
        for name, text in files.items()
        if (old := found[name]) is not None and is_edited(old, text)
    ]
    if edited and not may_overwrite:
        paths = ", ".join(str(folder / name) for name in edited)
        raise ConfigError(
            f"not as Herma wrote it, so nothing is written: {paths}; keep changes of your own in a "
            "file that is yours (for units: systemctl edit NAME), or overwrite with --force"
        )
    for name, text in files.items():
        path, whole = folder / name, with_digest(text)
        is_same = found[name] == whole
        if not is_same:
            _write(path, whole)
        print(f"{path} {'unchanged' if is_same else 'written'}")


def _check_owner(folder: Path, units: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a unit of that name starts what another file describes: a user's units
    are named after workers, and those of two files may have the same names.
    """
    for name, text in units.items():
        old = _read(folder / name)
        if old is not None and (file := file_in(old)) != file_in(text):
            raise ConfigError(
                f"{folder / name} is of {file or 'no file'}, so nothing is written: write to a "
                "folder of your own with --output, or overwrite with --force"
            )


def _read(path: Path) -> str | None:
    """The text of a file; None if there is none. Raises `ConfigError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return "\ufffd"  # nothing that Herma wrote
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    """Raises `ConfigError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; run it as root, or use --user or --output"
        ) from error
