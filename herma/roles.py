"""`herma gateway` and `herma worker`: the two processes, each in the foreground.

Owns the translation of the command line into what those packages take. Must not import one for
the other's sake: a gateway box needs no torch.
"""

import argparse


def run_gateway(arguments: argparse.Namespace) -> int:
    """Run the gateway until it is told to stop."""
    from gateway.__main__ import main

    argv = _config_option(arguments)
    if arguments.port is not None:
        argv += ["--port", str(arguments.port)]
    if arguments.worker_bind is not None:
        argv += ["--worker-bind", arguments.worker_bind]
    if arguments.server is not None:
        argv += ["--server", arguments.server]
    return main(argv)


def run_worker(arguments: argparse.Namespace) -> int:
    """Run one worker until it is told to stop."""
    from workers.__main__ import main

    argv = _config_option(arguments)
    if arguments.name is not None:
        argv += ["--name", arguments.name]
    for address in arguments.gateway or ():
        argv += ["--gateway", address]
    for option in ("engine", "script", "model", "step_ms", "batch"):
        if (value := getattr(arguments, option)) is not None:
            argv += [f"--{option.replace('_', '-')}", str(value)]
    if arguments.beside_gateway:
        argv.append("--beside-gateway")
    return main(argv)


def _config_option(arguments: argparse.Namespace) -> list[str]:
    return [] if arguments.config is None else ["--config", str(arguments.config)]
