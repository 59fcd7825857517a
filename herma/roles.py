"""`herma gateway` and `herma worker`: the two kinds of process, each in the foreground.

Owns the translation of the command line into what those packages take. Must not import one for
the other's sake: a gateway box needs no torch.
"""

import argparse
from typing import Final

from config import Config, builtin_config, load_config, with_gateway

_GATEWAY_KEYS: Final = ("port", "worker_bind", "server", "processes")
"""Options of the command line that stand for a key of `[gateway]`."""


def run_gateway(arguments: argparse.Namespace) -> int:
    """Run the gateway, or the parent of several, until it is told to stop."""
    if arguments.process is None:
        config = gateway_config(arguments)
        if config.gateway.processes > 1:
            from herma.gateways import run_gateways

            return run_gateways(config, gateway_options(arguments))
    from gateway.__main__ import main

    options = gateway_options(arguments, but=("processes",))
    return main([*options, "--process", arguments.process or "0/1"])


def gateway_config(arguments: argparse.Namespace) -> Config:
    """The configuration, with what the command line says of the gateway. Raises `ConfigError`."""
    path = arguments.config
    config = builtin_config() if path is None else load_config(path)
    keys = {key: getattr(arguments, key, None) for key in _GATEWAY_KEYS}
    return with_gateway(config, "the command line" if path is None else str(path), **keys)


def gateway_options(arguments: argparse.Namespace, but: tuple[str, ...] = ()) -> list[str]:
    """How the command line said it, for another process; without those in `but`."""
    options = _config_option(arguments)
    for key in _GATEWAY_KEYS:
        if key not in but and (value := getattr(arguments, key, None)) is not None:
            options += [f"--{key.replace('_', '-')}", str(value)]
    return options


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
