"""`herma bench`: measures the engine, its quality, the gateway, the routing, and servers over HTTP.

Passes the command line to the benchmarks, which are in the source tree and not in the installed
package.
"""

import argparse
from importlib.util import find_spec

from protocol.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark. Returns 0 if every answer was right, else 1. Raises `HermaError`."""
    if find_spec("benchmarks") is None:
        raise ConfigError("the benchmarks are in the source tree: run this in a checkout of it")
    if arguments.action == "routing":
        from benchmarks.routing import command

        return command.run_command(arguments)
    if arguments.action == "gateway":
        from benchmarks.gateway import command as gateway_command

        return gateway_command.run_command(arguments)
    if arguments.action == "http":
        from benchmarks.http import command as http_command

        return http_command.run_command(arguments)
    if arguments.action == "quality":
        from benchmarks.quality import command as quality_command

        return quality_command.run_command(arguments)
    if arguments.action == "speculation":
        from benchmarks.speculation import command as speculation_command

        return speculation_command.run_command(arguments)
    from benchmarks.engine.command import run_command

    return run_command(arguments)
