"""`herma bench engine`: how fast is the engine, beside its floor and its peer?

Owns the way from the command line to the benchmark, which lies in the source tree and not in the
installed package: only who works on Herma needs it.
"""

import argparse
from importlib.util import find_spec

from protocol.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Run it; 0 if every answer was right, else 1. Raises `ConfigError`."""
    if find_spec("benchmarks") is None:
        raise ConfigError("the benchmarks are in the source tree: run this in a checkout of it")
    from benchmarks.engine.command import run_command

    return run_command(arguments)
