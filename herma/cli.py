"""The command line.

Owns the options of every command. Imports a command's module only to run it, so that `herma
config check` does not load torch. A `HermaError` is printed as one line with exit status 2.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from herma import EXIT_EXPLAINED
from protocol.errors import HermaError
from protocol.own_code import HELD
from protocol.version import VERSION

MAX_PORT = 65_535
MAX_PROCESSES = 64
EXIT_INTERRUPTED = 130
EXIT_ON_TRIAL = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if argv is None:
        from herma.entry import become_current

        become_current(sys.argv[1:], os.environ)
    is_on_trial = HELD in os.environ
    try:
        status = _explained(argv)
    except SystemExit as end:
        if end.code != EXIT_EXPLAINED or not is_on_trial:
            raise
        status = EXIT_EXPLAINED
    # A version on trial is followed by the one before: its parent may not take this as final.
    return EXIT_ON_TRIAL if is_on_trial and status == EXIT_EXPLAINED else status


def _explained(argv: Sequence[str] | None) -> int:
    """The status of a command, whose `HermaError` is one line."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        return _run(arguments)
    except HermaError as error:
        print(f"herma: {error}", file=sys.stderr)
        return EXIT_EXPLAINED
    except KeyboardInterrupt:  # before the command handles its signals itself
        return EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    if arguments.parent is not None:
        import signal

        from protocol.signals import die_with_parent

        die_with_parent(arguments.parent, signal.SIGTERM)
    command: Callable[[argparse.Namespace], int]
    module = "upgrade" if arguments.command == "rollback" else arguments.command
    command = import_module(f"herma.{module}_command").run
    return command(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="herma",
        description="One OpenAI-compatible URL for your GPU boxes, with cloud fallback.",
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_servers(commands)
    _add_config(commands)
    _add_doctor(commands)
    _add_plan(commands)
    _add_diff(commands)
    _add_boot(commands)
    _add_top(commands)
    _add_upgrade(commands)
    _add_keys(commands)
    _add_bench(commands)
    _add_usage(commands)
    _add_hermes(commands)
    return parser


def _add_servers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = commands.add_parser("up", help="the gateway and this host's workers")
    gateway = commands.add_parser("gateway", help="the gateway alone")
    worker = commands.add_parser("worker", help="one worker of the file; its status and restart")
    for role in (up, gateway, worker):
        role.add_argument("--config", type=Path, metavar="FILE", help="default: the built-in model")
    for role in (up, gateway):
        role.add_argument("--port", type=_port, metavar="N", help="instead of [gateway] port")
        role.add_argument(
            "--processes",
            type=_processes,
            metavar="N",
            help="gateway processes on one port; instead of [gateway] processes",
        )
        role.add_argument(
            "--log", choices=("events", "requests"), help="requests: also a line for each of them"
        )
    up.add_argument(
        "--model",
        metavar="DIR",
        help="serve this directory, hub id or built-in model without a file",
    )
    up.add_argument(
        "--name", dest="serves", metavar="NAME", help="its public name; default: its own"
    )
    gateway.add_argument("--serves", help=argparse.SUPPRESS)  # set by `herma up --model`
    gateway.add_argument("--worker-bind", metavar="ADDR", help="instead of [gateway] worker_bind")
    # Which of several processes this is, such as 0/4; set by their parent.
    gateway.add_argument("--process", help=argparse.SUPPRESS)
    worker.add_argument(
        "--name", metavar="NAME", help="a name of [[workers]]; default: the only one"
    )
    worker.add_argument(
        "--gateway", action="append", metavar="ADDR", help="instead of the worker's gateways"
    )
    commands.add_parser("reload", help="take what has changed in the file, without a restart")
    _add_engine(worker)
    # Set by `herma up`, whose gateway prints the same events on the same terminal.
    worker.add_argument("--beside-gateway", action="store_true", help=argparse.SUPPRESS)
    _add_worker_actions(worker)


ENGINE_KINDS: Final = ("native", "synthetic", "scripted", "vllm", "sglang", "llama-cpp", "openai")
"""Those of `config`, which is not imported for a help text."""


def _add_engine(worker: argparse.ArgumentParser) -> None:
    """Options that override keys of the worker's table."""
    worker.add_argument(
        "--engine",
        choices=ENGINE_KINDS,
        help="instead of the worker's; all after scripted are other people's and need its `url`",
    )
    worker.add_argument("--model", metavar="DIR", help="instead of the worker's")
    worker.add_argument("--serves", metavar="NAME", help="the model's public name, likewise")
    worker.add_argument("--script", metavar="FILE", help="what a scripted engine answers")
    worker.add_argument("--step-ms", type=float, metavar="MS", help="a synthetic engine's pace")
    worker.add_argument("--batch", type=int, metavar="N", help="instead of the worker's max_seqs")


def _add_worker_actions(worker: argparse.ArgumentParser) -> None:
    actions = worker.add_subparsers(dest="action", metavar="[status | restart]")
    status = actions.add_parser("status", help="the state of this host's workers")
    status.add_argument("worker", nargs="?", metavar="NAME", help="default: all of them")
    restart = actions.add_parser("restart", help="restart a worker's engine")
    restart.add_argument("worker", metavar="NAME")
    restart.add_argument("--pid", type=int, help="which, if several have the name")
    restart.add_argument("--force", action="store_true", help="without finishing running requests")


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = commands.add_parser("doctor", help="what is wrong with this host, and what mends it")
    doctor.add_argument("--config", type=Path, metavar="FILE", help="also check what it names")
    doctor.add_argument("--json", action="store_true", help="findings as one JSON array")
    doctor.add_argument("--fix", action="store_true", help="make the repairs that are safe")


def _add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    plan = commands.add_parser("plan", help="what a model takes on a card, before it is loaded")
    plan.add_argument("model", metavar="MODEL", help="a directory, hub id, or dummy:SHAPE")
    plan.add_argument("--card", default="24GB", metavar="SIZE", help="24GB or 22.4GiB of memory")
    plan.add_argument(
        "--window", type=_positive, metavar="N", help="tokens; default: the profile's"
    )


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens")


def _add_diff(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    diff = commands.add_parser("diff", help="what has changed since a worker's last good start")
    diff.add_argument("worker", nargs="?", metavar="WORKER", help="default: all with a record")
    diff.add_argument(
        "--config", type=Path, metavar="FILE", help="default: as its latest start was configured"
    )
    diff.add_argument("--before", action="store_true", help="since the good start before the last")
    diff.add_argument("--deep", action="store_true", help="also compare the whole model files")
    diff.add_argument("--json", action="store_true", help="for programs")


def _add_boot(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    systemd = commands.add_parser("systemd", help="write units that start Herma at boot")
    container = commands.add_parser("container", help="write a Containerfile and a compose file")
    drill = commands.add_parser("drill", help="prove without a reboot that a boot works")
    systemd.add_argument("--config", type=Path, metavar="FILE", help="default: the built-in model")
    container.add_argument("--config", type=Path, metavar="FILE", help="what it serves by")
    for command in (systemd, drill):
        command.add_argument("--user", action="store_true", help="of your own service manager")
    for command in (systemd, container):
        command.add_argument(
            "--output", type=Path, metavar="DIR", help="instead of the usual place"
        )
    systemd.add_argument(
        "--worker", action="append", metavar="NAME", help="only this worker or rank; repeatable"
    )
    container.add_argument(
        "--base", default="docker.io/library/python:3.12-slim", metavar="IMAGE", help="with Python"
    )
    drill.add_argument("--units", type=Path, metavar="DIR", help="instead of the usual place")
    drill.add_argument("--url", help="of the gateway, if none of the units is one")
    drill.add_argument("--key-env", metavar="NAME", help="variable with an API key of the gateway")
    drill.add_argument("--timeout", type=float, default=900.0, metavar="S", help="for all answers")


def _add_top(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    top = commands.add_parser("top", help="the dashboard of a running gateway in this terminal")
    top.add_argument("--url", help="default: of the gateway on this host")
    top.add_argument(
        "--key-env", metavar="NAME", help="variable with an admin's API key, from another host"
    )
    commands.add_parser("grafana", help="print a dashboard for Grafana over Prometheus")
    form = top.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="one frame of plain text")
    form.add_argument("--json", action="store_true", help="all of it once, for programs")


def _add_upgrade(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    upgrade = commands.add_parser("upgrade", help="another version, tried before it serves")
    rollback = commands.add_parser("rollback", help="back to the version before the last upgrade")
    for command in (upgrade, rollback):
        command.add_argument(
            "installation",
            nargs="?",
            default="herma",
            metavar="NAME",
            help="of a launch's `installation`; default: Herma itself",
        )
        command.add_argument("--list", action="store_true", help="the versions of this host")
        command.add_argument("--drain", type=float, default=600.0, metavar="S", help="at most")
        command.add_argument(
            "--bound", type=float, default=900.0, metavar="S", help="until a version is ready"
        )
        command.add_argument(
            "--pause", action="store_true", help="although requests of a model wait meanwhile"
        )
        command.add_argument("--gateway", metavar="URL", help="of another host, which it asks")
        command.add_argument("--key-env", metavar="NAME", help="variable with its admin's API key")
    upgrade.add_argument("--wheel", type=Path, metavar="FILE", help="install this wheel")
    upgrade.add_argument("--package", metavar="NAME==VERSION", help="of the --index")
    upgrade.add_argument("--index", metavar="URL", help="where packages come from")
    upgrade.add_argument("--image", metavar="REF", help="pull this image")
    upgrade.add_argument("--constraints", type=Path, metavar="FILE", help="for the installation")
    upgrade.add_argument(
        "--share-packages", action="store_true", help="see the packages of the current version"
    )
    upgrade.add_argument("--python", default=sys.executable, metavar="FILE", help="for it")
    upgrade.add_argument(
        "--smoke", metavar="COMMAND", help="must succeed; {version} is the directory or image"
    )
    upgrade.add_argument("--stage", action="store_true", help="install and prove, no more")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 0 (any free one) to {MAX_PORT}")


def _processes(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PROCESSES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a process count; use 1 to {MAX_PROCESSES}")


def _add_config(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    config = commands.add_parser("config", help="work with configuration files")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="validate a file without starting anything")
    check.add_argument("file", type=Path)


def _add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    keys = commands.add_parser("keys", help="make API keys and CURVE pairs")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="a new API key and its [[keys]] table")
    new.add_argument("name")
    curve = actions.add_parser(
        "curve", help="a CURVE pair: writes the secret, prints the public key"
    )
    curve.add_argument("file", type=Path)


def _add_usage(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    usage = commands.add_parser("usage", help="tokens and cost by key, model, provider and day")
    usage.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="default: the built-in configuration",
    )
    usage.add_argument(
        "--by",
        action="append",
        choices=("day", "key", "model", "provider"),
        help="group by; may be repeated (default: provider and model)",
    )
    usage.add_argument(
        "--since", metavar="DAY", help="2026-11-21, or 7d for seven days; default: this month (UTC)"
    )
    usage.add_argument("--json", action="store_true", help="for programs")


def _add_hermes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    hermes = commands.add_parser("hermes", help="Hermes Agent's configuration for this gateway")
    hermes.add_argument("--url", default="http://127.0.0.1:8080/v1", help="of the running gateway")
    hermes.add_argument("--model", metavar="ID", help="Hermes' default; else the first one listed")
    hermes.add_argument(
        "--key-env", metavar="NAME", help="the environment variable that holds the API key"
    )


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser("bench", help="measure this machine")
    actions = bench.add_subparsers(dest="action", required=True, metavar="ACTION")
    engine = actions.add_parser("engine", help="the engine's speed, its floor and a peer")
    engine.add_argument("--model", required=True, help="directory, hub id, or qwen3-0.6b ... -32b")
    engine.add_argument("--dummy", action="store_true", help="random weights of the model's shape")
    form = engine.add_mutually_exclusive_group()
    form.add_argument("--fp8", action="store_true", help="layers in 8 bits")
    form.add_argument("--int4", action="store_true", help="layers in 4 bits")
    engine.add_argument("--prefill-fp8", action="store_true", help="long prompts in 8 bits")
    engine.add_argument("--invariant", action="store_true", help="tokens that no load changes")
    engine.add_argument("--tests", default="all", metavar="LIST", help="all, soak, smoke, or some")
    engine.add_argument("--batches", default="", metavar="LIST", help="of decode only these")
    engine.add_argument("--lengths", default="", metavar="LIST", help="of first-token only these")
    engine.add_argument("--runs", type=int, default=0, metavar="N", help="of each test, not three")
    engine.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    engine.add_argument("--seconds", type=float, default=480.0, help="how long the soak lasts")
    engine.add_argument("--json", type=Path, metavar="FILE")
    engine.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
    engine.add_argument("--trace", type=Path, metavar="FILE", help="every step of every test")
    _add_bench_quality(actions)
    _add_bench_gateway(actions)
    _add_bench_http(actions)
    _add_bench_routing(actions)
    _add_bench_speculation(actions)


def _add_bench_quality(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    quality = actions.add_parser(
        "quality", help="perplexity and agreement of a setting with the same model without it"
    )
    quality.add_argument("--model", default="builtin:herma-tiny", help="directory, hub id or shape")
    quality.add_argument(
        "--setting",
        action="append",
        metavar="KEY=VALUE[,KEY=VALUE]",
        help="keys of a worker; repeatable; default: all ways to 8 bits",
    )
    quality.add_argument("--text", action="append", type=Path, metavar="FILE", help="repeatable")
    quality.add_argument("--tokens", type=int, default=8192, metavar="N", help="of each text")
    quality.add_argument("--window", type=int, default=512, metavar="N", help="tokens of a prompt")
    quality.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    quality.add_argument("--json", type=Path, metavar="FILE")


def _add_bench_gateway(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    gateway = actions.add_parser("gateway", help="what a request and a token cost the gateway")
    gateway.add_argument(
        "--tests", default="all", metavar="LIST", help="all, smoke, streams, burst, leak, or some"
    )
    gateway.add_argument("--runs", type=int, default=5, metavar="N", help="of each; the median")
    gateway.add_argument(
        "--link", choices=("ipc", "tcp"), default="ipc", help="to the worker: a socket, or ZeroMQ"
    )
    gateway.add_argument("--json", type=Path, metavar="FILE")


def _add_bench_http(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    http = actions.add_parser(
        "http", help="OpenAI-compatible servers under the same load, in turns"
    )
    http.add_argument("--url", action="append", help="of a server, with /v1; once for each")
    http.add_argument("--name", action="append", help="in the table; once for each --url")
    http.add_argument(
        "--model", action="append", metavar="ID", help="one for all or each; default: first listed"
    )
    http.add_argument(
        "--key-env",
        action="append",
        metavar="NAME",
        help="of the API key; once for each, - is none",
    )
    http.add_argument("--cells", default="1,8,64,256", metavar="N,N", help="streams at once; or -")
    http.add_argument("--agents", default="32x4", metavar="NxT", help="conversations x turns; or -")
    http.add_argument("--agent-tokens", default="4000,8000", metavar="N,N", help="shared, at last")
    http.add_argument("--cold", default="8x15000", metavar="NxT", help="behind a cold prefix; or -")
    http.add_argument("--input", type=int, default=550, metavar="N", help="tokens of a prompt")
    http.add_argument("--output", type=int, default=128, metavar="N", help="tokens of an answer")
    http.add_argument("--requests", type=int, default=2, metavar="N", help="per stream and round")
    http.add_argument("--rounds", type=int, default=3, metavar="N")
    http.add_argument("--seed", type=int, metavar="N", help="default: another one every time")
    http.add_argument("--patience", type=float, default=120.0, metavar="S", help="of silence")
    http.add_argument("--no-ignore-eos", action="store_true", help="answers may end early")
    http.add_argument("--text", type=Path, metavar="FILE", help="prompts of its words")
    http.add_argument("--json", type=Path, metavar="FILE")
    http.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")


def _add_bench_speculation(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    speculation = actions.add_parser(
        "speculation", help="what drafts bring: by depth, sequences at once, and kind of text"
    )
    add = speculation.add_argument
    add("--model", default="builtin:herma-tiny", help="directory, hub id or shape")
    add(
        "--drafter", required=True, metavar="PATH", help="or ngram, suffix; dflash, mtp: drawn ones"
    )
    add("--acceptance", metavar="NAME|P,P", help="as often as vllm, constant, mtp, or by place")
    add("--batches", default="1,8", metavar="N,N", help="sequences at once")
    add("--depths", default="0-15", metavar="N-N", help="drafts of a pass; adaptive, too")
    add("--fixed-only", action="store_true", help="not adaptive")
    add("--profile", action="store_true", help="what a card does in the steps of each figure")
    add("--rounds", type=int, default=1, metavar="N", help="through all depths; the fastest counts")
    add("--cpu-time", action="store_true", help="of this process: where others compute, too")
    add("--prompts", type=int, default=8, metavar="N", help="of each kind, at least")
    add("--prompt-tokens", type=int, default=2048, metavar="N", help="the longest")
    add("--outputs", type=int, default=256, metavar="N", help="tokens of an answer, at most")
    add("--temperature", type=float, default=0.0)
    add("--text", action="append", type=Path, metavar="FILE", help="of prompts, in paragraphs")
    add("--fp8", action="store_true", help="layers in 8 bits")
    add("--drafter-fp8", action=argparse.BooleanOptionalAction, help="drafts in 8 bits, or not")
    add("--dtype", help="float32, bfloat16 or float16")
    add("--device", default="auto")
    add("--json", type=Path, metavar="FILE", help="the figures")
    add("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")


def _add_bench_routing(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    routing = actions.add_parser("routing", help="routing policies on traces, in virtual time")
    routing.add_argument(
        "--trace",
        action="append",
        metavar="FILE|fleet|long|fanout",
        help="repeatable; default: fleet",
    )
    routing.add_argument("--workers", default="2,4,8,16", metavar="N,N", help="fleet sizes")
    routing.add_argument("--policies", default="all", metavar="NAMES", help="or some, by commas")
    routing.add_argument("--load", default="0.5,0.8,0.95,1.1", metavar="X,X", help="of capacity")
    routing.add_argument("--kv-tokens", type=int, metavar="N", help="per worker")
    routing.add_argument(
        "--states", type=int, metavar="N", help="per worker, of prefixes, as hybrids keep them"
    )
    routing.add_argument("--limit", type=int, metavar="N", help="requests of each trace")
    routing.add_argument("--seeds", default="0,1,2", metavar="N,N", help="for generated fleets")
    routing.add_argument("--processes", type=int, default=2, metavar="N", help="side by side")
    routing.add_argument(
        "--experiment", choices=("fairness", "collapse"), help="this one instead of the table"
    )
    routing.add_argument(
        "--waits", action="store_true", help="announced waits beside real ones instead"
    )
    routing.add_argument(
        "--moves",
        action="store_true",
        help="turns placed away from their cache, explained, instead",
    )
    routing.add_argument(
        "--validate", action="store_true", help="the simulator against two real CPU workers"
    )
    routing.add_argument("--json", type=Path, metavar="FILE", help="the rows")
    routing.add_argument(
        "--beside", type=Path, action="append", metavar="FILE", help="with the rows of a --json"
    )
    routing.add_argument("--plot", type=Path, metavar="FILE", help="a PNG; needs matplotlib")
