"""`python -m workers --config FILE --name NAME [--gateway ADDR ...]`: one worker process.

Owns the command line and the exit status. Must not know what a worker does.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from config import (
    ENGINE_KINDS,
    EXTERNAL_ENGINES,
    Config,
    WorkerConfig,
    builtin_config,
    dials_made_keys,
    keys_dir,
    load_config,
)
from protocol.errors import ConfigError
from protocol.reading import FAULTS
from protocol.transport import gateway_key_file, kept_pair, worker_key_file
from workers.engine_extra import check_engine_extra
from workers.supervisor.app import serve
from workers.supervisor.engine_process import NATIVE_ENGINE

ENGINE_COMMAND: Final = "HERMA_ENGINE_COMMAND"
"""For tests: a JSON array of words that start an engine in place of ours. The supervisor appends
`--fd`, `--name` and `--parent`; the other end speaks `workers/ipc/messages.py`.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the named worker until a signal ends it. Raises `ConfigError` with one line."""
    arguments = parse(argv)
    return serve(
        partial(read_worker, arguments),
        beside_gateway=arguments.beside_gateway,
        engine_command=engine_command(os.environ),
        arguments=sys.argv[1:] if argv is None else argv,
        file=str(arguments.config.absolute()) if arguments.config else "",
    )


def read_worker(arguments: argparse.Namespace) -> WorkerConfig:
    """The configuration of the worker, from the file and the command line. Raises `ConfigError`."""
    config = load_config(arguments.config) if arguments.config else builtin_config()
    worker = with_options(pick_worker(config, arguments.name), arguments)
    worker = with_made_keys(worker, str(arguments.config or ""), os.environ)
    if ENGINE_COMMAND not in os.environ:
        check_engine_extra((worker,))
    if worker.script is not None:
        from workers.replay import load_script  # noqa: PLC0415 -- most workers have no script

        load_script(Path(worker.script).expanduser())  # a mistake is reported before any start
    return worker


def pick_worker(config: Config, name: str | None) -> WorkerConfig:
    """The worker of that name, or the only one. Raises `ConfigError`."""
    known = ", ".join(worker.name for worker in config.workers) or "none"
    if name is None:
        if len(config.workers) != 1:
            raise ConfigError(f"say which worker with --name; the file has: {known}")
        return config.workers[0]
    if (worker := config.worker(name)) is None:
        raise ConfigError(f"no [[workers]] table is named `{name}`; the file has: {known}")
    return worker


def with_options(worker: WorkerConfig, arguments: argparse.Namespace) -> WorkerConfig:
    """The worker with the values of the command line. Raises `ConfigError`."""
    options = {
        "gateways": tuple(arguments.gateway) if arguments.gateway else None,
        "engine": arguments.engine or ("scripted" if arguments.script is not None else None),
        "script": arguments.script,
        "model": arguments.model,
        "step_ms": arguments.step_ms,
        "max_seqs": arguments.batch,
        "serves": arguments.serves,
    }
    given = {key: value for key, value in options.items() if value is not None}
    table = {**msgspec.to_builtins(worker), **given}
    if given.get("engine") in EXTERNAL_ENGINES:
        table["max_gap_ms"] = None  # the profile's, for steps of our own engines
    try:
        return msgspec.convert(table, WorkerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"worker `{worker.name}`, with these options: {error}") from error


def with_made_keys(worker: WorkerConfig, source: str, environ: Mapping[str, str]) -> WorkerConfig:
    """The worker with its made keys, if it dials a gateway on loopback without others; missing
    pairs are made now. `source` is the path of its file, "" without one. Raises `ConfigError`.
    """
    if not dials_made_keys(worker):
        return worker
    folder = keys_dir(source, environ)
    path = worker_key_file(folder, worker.name)
    kept_pair(path)
    key = kept_pair(gateway_key_file(folder)).public
    return msgspec.structs.replace(worker, curve_secret_file=str(path), curve_server_key=key)


def engine_command(environ: Mapping[str, str]) -> Sequence[str]:
    """The words that start an engine. Raises `ConfigError` if the variable is not a JSON array of
    words.
    """
    if (text := environ.get(ENGINE_COMMAND)) is None:
        return NATIVE_ENGINE
    try:
        words = msgspec.json.decode(text, type=tuple[str, ...])
    except FAULTS as error:
        raise ConfigError(f"{ENGINE_COMMAND} is no JSON array of words: {error}") from error
    if not words:
        raise ConfigError(f"{ENGINE_COMMAND} has no word")
    return words


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options of a worker. Exits with status 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    parser.add_argument("--config", type=Path, help="configuration file; default: built-in")
    parser.add_argument("--name", help="which of [[workers]]; default: the only one")
    parser.add_argument(
        "--gateway", action="append", metavar="ADDR", help="dial this instead; repeatable"
    )
    parser.add_argument("--engine", help=f"instead of the file's: {', '.join(ENGINE_KINDS)}")
    parser.add_argument("--model", metavar="DIR", help="instead of the file's")
    parser.add_argument("--serves", metavar="NAME", help="the model's public name")
    parser.add_argument("--script", metavar="FILE", help="what a scripted engine answers")
    parser.add_argument("--step-ms", type=float, metavar="MS", help="a synthetic engine's pace")
    parser.add_argument("--batch", type=int, metavar="N", help="instead of max_seqs")
    parser.add_argument(
        "--beside-gateway",
        action="store_true",
        help="the gateway writes to the same terminal: leave to it what both would say",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"herma worker: {error}", file=sys.stderr)
        sys.exit(1)
