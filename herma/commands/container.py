"""`herma container`: write a Containerfile and a compose file.

Owns where they are written, and the printed next steps.
"""

import argparse
from pathlib import Path
from typing import Final

from herma.boot import compose_file, containerfile, needed_variables
from herma.commands.systemd import read_config, write_files
from protocol.errors import ConfigError

_IMAGE: Final = "localhost/herma"


def run(arguments: argparse.Namespace) -> int:
    """Write both files. Raises `ConfigError`, also without a configuration to mount."""
    if arguments.config is None:
        raise ConfigError("a container needs a configuration: herma container --config FILE")
    config, path = read_config(arguments.config)
    assert path is not None
    folder: Path = arguments.output or Path.cwd()
    files = {
        "Containerfile": containerfile(arguments.base),
        "compose.yaml": compose_file(config, path, _IMAGE),
    }
    write_files(folder, files, may_overwrite=arguments.force)
    if variables := needed_variables(config):
        print(f"set {', '.join(variables)} in {folder / '.env'}, one NAME=VALUE a line, mode 0600")
    print(f"podman build -t {_IMAGE} {folder}   # or docker build -f Containerfile")
    print(f"docker compose -f {folder / 'compose.yaml'} up -d")
    return 0
