"""`herma bench`: measures the engine, its quality, the gateway, the routing, and servers over HTTP.

The benchmarks and their options are in the source tree but not in the installed package. Must not
know any of them.
"""

import argparse
from importlib.util import find_spec

from herma.options import Commands, add_command
from protocol.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark. Returns 0 if every answer was right, else 1. Raises `HermaError`."""
    if find_spec("benchmarks") is None:
        raise ConfigError("the benchmarks are in the source tree: run this in a checkout of it")
    from benchmarks.options import run_benchmark

    return run_benchmark(arguments)


def add_bench(commands: Commands) -> None:
    """Add `herma bench WHAT`. Without the source tree the parser accepts all words, and `run`
    refuses them.
    """
    bench = add_command(commands, "bench", "measure this machine")
    if find_spec("benchmarks") is None:
        bench.add_argument("action", nargs=argparse.REMAINDER, metavar="ACTION")
        return
    from benchmarks.options import add_benchmarks

    add_benchmarks(bench)
