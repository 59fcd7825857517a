"""`python -m gateway`: the gateway process.

Owns its command line, its title and the garbage collector's settings. Must not know what
runs inside.
"""

import argparse
import faulthandler
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio
from setproctitle import setproctitle

from config import Config, builtin_config, load_config, with_gateway
from gateway.app import run_gateway
from gateway.gateway_index import ALONE, gateway_index_of
from gateway.made_keys import with_made_keys
from gateway.process_log import start_log
from gateway.runtime import bound_arenas
from housekeeping.errors import innermost
from housekeeping.log_lines import log_style
from housekeeping.process_start import ProcessStart
from housekeeping.service_manager import say
from housekeeping.signals import outlive_hangups
from protocol.errors import ConfigError, HermaError
from protocol.transport import enable_inline_reads, use_name_lookups

_GC_THRESHOLDS: Final = (10_000, 10, 5)
"""A request makes some thousand objects; at Python's own threshold of 700 the collector would run
several times per request. A run over 10,000 takes 0.3 ms.
"""

_SWITCH_S: Final = 0.0005
"""How long the loop lets a thread that computes keep Python's lock. The loop gives the lock up at
each system call, a dozen times for a request, and at Python's own 5 ms an answer of 13 ms took 35
while others' long prompts were read.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Raises `ConfigError` with one line when that cannot begin."""
    arguments = _parser().parse_args(argv)
    gateway_index = ALONE if arguments.process is None else gateway_index_of(arguments.process)
    label = "" if gateway_index.name is None else f" [{arguments.process}]"
    setproctitle(f"herma gateway{label}")
    # One thread encodes a prompt: more would take cores from the tasks that forward tokens.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    bound_arenas()
    sys.setswitchinterval(_SWITCH_S)
    start_log(label, log_style(os.environ))
    outlive_hangups()
    # The parent of several gateway processes sends SIGUSR2 to one that hangs, so that its stack is
    # in the log before the parent kills it.
    faulthandler.register(signal.SIGUSR2)
    start = ProcessStart.take(os.environ)
    config = _config(arguments)
    reread = None if arguments.config is None else functools.partial(_config, arguments)

    file = "" if arguments.config is None else str(arguments.config.absolute())

    async def serve() -> None:
        enable_inline_reads()
        use_name_lookups()
        await run_gateway(config, os.environ, _announce, gateway_index, reread, start, file)

    _raise_config_error(lambda: trio.run(serve))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="herma gateway", description="The OpenAI-compatible URL.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: the built-in model")
    parser.add_argument("--serves", metavar="NAME", help="without a file: the model's public name")
    parser.add_argument("--port", type=int, metavar="N", help="instead of [gateway] port")
    parser.add_argument("--worker-bind", metavar="ADDR", help="instead of [gateway] worker_bind")
    parser.add_argument("--log", choices=("events", "requests"), help="instead of [gateway] log")
    parser.add_argument(
        "--process", metavar="I/N", help="index and count; `herma gateway --processes N` sets it"
    )
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    config = _without_file(arguments) if arguments.config is None else load_config(arguments.config)
    if arguments.process is None and config.gateway.processes > 1:
        raise ConfigError("this is one process; several are started by `herma gateway`")
    config = with_gateway(
        config,
        str(arguments.config),
        processes=None if arguments.process is None else gateway_index_of(arguments.process).count,
        port=arguments.port,
        worker_bind=arguments.worker_bind,
        log=arguments.log,
    )
    return with_made_keys(config, str(arguments.config or ""), os.environ)


def _without_file(arguments: argparse.Namespace) -> Config:
    return builtin_config() if arguments.serves is None else builtin_config(serves=arguments.serves)


def _announce(line: str) -> None:
    """Print that the gateway is ready. The objects that exist now live as long as the process, so
    the garbage collector, which stops all streams while it runs, skips them from now on.
    """
    say(line, sys.stdout)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _raise_config_error(run: Callable[[], None]) -> None:
    """Call `run`; raise a `ConfigError` without the exception groups that trio wraps around it."""
    found: BaseException | None = None
    try:
        run()
    except* ConfigError as group:
        found = innermost(group)
    if found is not None:
        raise found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HermaError as error:
        print(f"herma gateway: {error}", file=sys.stderr)
        sys.exit(1)
