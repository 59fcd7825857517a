"""The command line.

Owns the options of every command. Imports a command's module only to run it, so that `herma
config check` does not load torch. A `HermaError` is printed as one line with exit status 2.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from herma import EXIT_EXPLAINED
from herma.attach.options import add_attach_options
from herma.clients.options import CLIENTS, add_clients
from herma.commands.bench import add_bench
from herma.file_errors import explained_file_error
from herma.options import (
    CommandParser,
    Commands,
    HelpFormat,
    add_cache,
    add_command,
    add_file,
    add_gateway_of_file,
    add_key_variable,
    add_one_worker,
    add_vocabulary,
    add_whose,
    port,
    process_count,
    token_count,
)
from housekeeping.imports import import_uncollected
from housekeeping.log_lines import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, LEVELS
from housekeeping.own_code import HELD
from protocol.errors import HermaError
from protocol.version import VERSION

EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
EXIT_ON_TRIAL = 1
_MODULES: Final = {"rollback": "upgrade", **dict.fromkeys(CLIENTS, "client")}
"""The modules of commands that share one."""


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
    # A version on trial returns to the one before it, so its parent must not take this status as
    # final.
    return EXIT_ON_TRIAL if is_on_trial and status == EXIT_EXPLAINED else status


def _explained(argv: Sequence[str] | None) -> int:
    """Run the command and return its status; print its `HermaError` as one line."""
    parser = command_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        status = _run(arguments)
        print(end="", flush=True)
    except HermaError as error:
        # `herma config check` has a line for each of several mistakes.
        print(*(f"herma: {line}" for line in str(error).split("\n")), sep="\n", file=sys.stderr)
        return EXIT_EXPLAINED
    except ModuleNotFoundError as error:
        from workers.engine_extra import ENGINE_PACKAGES, INSTALL

        if error.name not in ENGINE_PACKAGES:
            raise
        what = f"`herma {arguments.command}` needs {error.name}, which is not installed"
        print(f"herma: {what}: {INSTALL}", file=sys.stderr)
        return EXIT_EXPLAINED
    except KeyboardInterrupt:  # before the command handles signals itself
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has left, as in `herma plan MODEL | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    except OSError as error:
        explained = explained_file_error(error)
        if explained is None:
            raise
        return explained
    return status


def _take_found_config(arguments: argparse.Namespace) -> None:
    """Take `herma.toml` in this folder, or the user's, for a command that reads a file and was
    given none. A child of another command gets its file by name.
    """
    takes_file = "config" in arguments and arguments.config is None
    if not takes_file or _needs_no_file(arguments) or arguments.parent is not None:
        return
    from config import found_config

    if (path := found_config(Path.cwd(), os.environ)) is not None:
        print(f"herma: reading {path}", file=sys.stderr)
        arguments.config = path


def _needs_no_file(arguments: argparse.Namespace) -> bool:
    """Whether other options say what a file would: the model, the gateway or the processes."""
    if arguments.command == "doctor":
        return False
    if arguments.command == "usage":  # reads the running gateway's ledger first
        return True
    if arguments.command in CLIENTS:  # their --model is one that a gateway serves
        return arguments.url is not None
    return any(getattr(arguments, name, None) for name in ("model", "attach", "url", "all"))


def _run(arguments: argparse.Namespace) -> int:
    _take_found_config(arguments)
    if arguments.parent is not None:
        import signal

        from housekeeping.signals import die_with_parent

        die_with_parent(arguments.parent, signal.SIGTERM)
    for option, variable in (("log_format", FORMAT_VARIABLE), ("log_level", LEVEL_VARIABLE)):
        if (word := getattr(arguments, option, None)) is not None:
            os.environ[variable] = word  # for this process and its children
    if "log_format" in arguments and sys.stderr.isatty():
        os.environ.setdefault(FORMAT_VARIABLE, "text")  # a person reads: no JSON between the lines
    command: Callable[[argparse.Namespace], int]
    module = _MODULES.get(arguments.command, arguments.command)
    command = import_uncollected(f"herma.commands.{module}").run
    return command(arguments)


def command_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser: argparse.ArgumentParser = CommandParser(
        prog="herma",
        description="One OpenAI-compatible URL for your GPU boxes, with cloud fallback.",
        epilog="`herma COMMAND --help` lists the options of a command.",
        formatter_class=HelpFormat,
    )
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_servers(commands)
    _add_config(commands)
    _add_init(commands)
    _add_doctor(commands)
    _add_plan(commands)
    _add_diff(commands)
    _add_boot(commands)
    _add_status(commands)
    add_cache(commands)
    _add_top(commands)
    _add_completion(commands)
    _add_sessions(commands)
    _add_upgrade(commands)
    _add_keys(commands)
    add_bench(commands)
    _add_usage(commands)
    add_clients(commands)
    return parser


def _add_servers(commands: Commands) -> None:
    up = add_command(commands, "up", "run the gateway and this host's workers")
    gateway = add_command(commands, "gateway", "run the gateway alone")
    worker = add_command(
        commands,
        "worker",
        "run one worker of the file; or show, restart, put to sleep or wake those that run",
    )
    for role in (up, gateway, worker):
        add_file(role, "default: herma.toml, as found, else the built-in model")
    _add_log(up, gateway, worker)
    for role in (up, gateway):
        role.add_argument(
            "--port",
            type=port,
            metavar="N",
            help="the port to listen on, instead of [gateway] port",
        )
        role.add_argument(
            "--processes",
            type=process_count,
            metavar="N",
            help="gateway processes on one port; instead of [gateway] processes",
        )
        role.add_argument(
            "--log",
            choices=("events", "requests"),
            help="what to print: events alone, or also a line for each request",
        )
    up.add_argument(
        "--model",
        metavar="DIR",
        help="serve this directory, hub id or built-in model without a file",
    )
    up.add_argument(
        "--name", dest="serves", metavar="NAME", help="the public name of --model; default: its own"
    )
    add_attach_options(up)
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
    _add_reload(commands)
    _add_engine(worker)
    # Set by `herma up`, whose gateway prints the same events on the same terminal.
    worker.add_argument("--beside-gateway", action="store_true", help=argparse.SUPPRESS)
    _add_worker_actions(worker)


def _add_reload(commands: Commands) -> None:
    reload = add_command(commands, "reload", "take what has changed in the file, without a restart")
    add_whose(reload, "processes").add_argument(
        "--pid", type=int, help="only this process of Herma, by SIGHUP, as systemd's units do it"
    )


def _add_log(*roles: argparse.ArgumentParser) -> None:
    for role in roles:
        role.add_argument(
            "--log-format",
            choices=FORMATS,
            help="lines of the log, events included; default: text, and events as JSON but on a "
            "terminal",
        )
        role.add_argument(
            "--log-level",
            choices=LEVELS,
            help="what the log leaves out; default: info. From warning on also engines' own lines",
        )


ENGINE_KINDS: Final = ("native", "synthetic", "scripted", "vllm", "sglang", "llama-cpp", "openai")
"""The kinds of `config`, which is not imported for a help text."""


def _add_engine(worker: argparse.ArgumentParser) -> None:
    """Add the options that override keys of the worker's table."""
    worker.add_argument(
        "--engine",
        choices=ENGINE_KINDS,
        help="instead of the worker's; from vllm on an engine that listens at the worker's `url`",
    )
    worker.add_argument("--model", metavar="DIR", help="the model, instead of the worker's")
    worker.add_argument(
        "--serves", metavar="NAME", help="the model's public name, instead of the worker's"
    )
    worker.add_argument("--script", metavar="FILE", help="what a scripted engine answers")
    worker.add_argument(
        "--step-ms", type=float, metavar="MS", help="milliseconds of a synthetic engine's step"
    )
    worker.add_argument("--batch", type=int, metavar="N", help="instead of the worker's max_seqs")


def _add_worker_actions(worker: argparse.ArgumentParser) -> None:
    actions = worker.add_subparsers(dest="action", metavar="[status | restart | sleep | wake]")
    status = add_command(actions, "status", "show the state of this host's workers")
    status.add_argument("worker", nargs="?", metavar="NAME", help="default: all of them")
    add_whose(status, "workers", default=argparse.SUPPRESS)
    restart = add_command(actions, "restart", "restart a worker's engine")
    add_one_worker(restart)
    restart.add_argument(
        "--force",
        action="store_true",
        help="do not wait for running requests: they go to another worker",
    )
    for action, what in (
        ("sleep", "let a worker that takes turns fall asleep; a request for its model wakes it"),
        ("wake", "wake a worker that takes turns"),
    ):
        change = add_command(actions, action, what)
        add_one_worker(change)


def _add_doctor(commands: Commands) -> None:
    doctor = add_command(commands, "doctor", "show what is wrong with this host, and what mends it")
    add_file(doctor, "also check the files, ports and secrets that it names")
    doctor.add_argument("--json", action="store_true", help="findings as one JSON array")
    doctor.add_argument(
        "--prefixes",
        action="store_true",
        help="instead: what breaks the prefix cache of the clients of a running gateway",
    )
    doctor.add_argument("--url", help="of that gateway; default: the one on this host")
    add_key_variable(doctor, "an admin's API key of that gateway")
    doctor.add_argument("--fix", action="store_true", help="make the repairs that are safe")


def _add_plan(commands: Commands) -> None:
    plan = add_command(commands, "plan", "show what models take on a card, before they are loaded")
    plan.add_argument(
        "models", metavar="MODEL", nargs="*",
        help="directory, hub id, built-in model, or dummy:qwen3-8b; of several, which fit together",
    )  # fmt: skip
    plan.add_argument("--formats", action="store_true", help="instead: which formats load, or not")
    plan.add_argument(
        "--card", metavar="SIZE", help="its memory, as 24GB or 22.4GiB; default: this host's card"
    )
    plan.add_argument(
        "--cards", type=int, choices=range(1, 9), default=1, metavar="N",
        help="cards of one host that compute the model together (tensor_parallel); default: 1",
    )  # fmt: skip
    plan.add_argument(
        "--window",
        type=token_count,
        metavar="N",
        help="tokens of prompt and answer; default: as many as the profile allows",
    )
    plan.add_argument(
        "--speculation",
        default="off",
        metavar="DRAFTER",
        help="auto, suffix, or a drafter's directory or hub id, as on a worker; default: off",
    )
    add_vocabulary(plan)


def _add_diff(commands: Commands) -> None:
    diff = add_command(commands, "diff", "show what has changed since a worker's last good start")
    diff.add_argument("worker", nargs="?", metavar="WORKER", help="default: all with a record")
    add_file(diff, "default: that of its latest start")
    diff.add_argument("--before", action="store_true", help="since the good start before the last")
    diff.add_argument("--deep", action="store_true", help="also compare the whole model files")
    diff.add_argument("--json", action="store_true", help="for programs")


def _add_boot(commands: Commands) -> None:
    systemd = add_command(commands, "systemd", "write units that start Herma at boot")
    container = add_command(commands, "container", "write a Containerfile and a compose file")
    drill = add_command(commands, "drill", "prove without a reboot that a boot works")
    drill.epilog = "It stops what runs of these units, and what was started by hand on their ports."
    add_file(systemd, "default: herma.toml, as found, else the built-in model")
    add_file(container, "the configuration that it serves; needed")
    for command in (systemd, drill):
        command.add_argument(
            "--user",
            action="store_true",
            help="units of your own service manager (systemctl --user)",
        )
    usual = "/etc/systemd/system, with --user ~/.config/systemd/user"
    for command, option, folder in (
        (systemd, "--output", usual),
        (container, "--output", "this one"),
        (drill, "--units", usual),
    ):
        text = f"folder of the files; default: {folder}"
        command.add_argument(option, type=Path, metavar="DIR", help=text)
    for command in (systemd, container):
        command.add_argument(
            "--force", action="store_true", help="overwrite files that were edited by hand"
        )
    systemd.add_argument("--dry-run", action="store_true", help="print the units, write nothing")
    systemd.epilog = (
        "Only root may write to /etc/systemd/system. It starts nothing; it prints the commands "
        "that start the units and that remove them."
    )
    systemd.add_argument(
        "--worker", action="append", metavar="NAME", help="only this worker or rank; repeatable"
    )
    container.add_argument(
        "--base",
        default="docker.io/library/python:3.12-slim",
        metavar="IMAGE",
        help="the image to build on, with Python",
    )
    drill.add_argument("--yes", action="store_true", help="stop what serves without asking")
    drill.add_argument("--url", help="of the gateway, if none of the units is one")
    add_key_variable(drill, "an API key of the gateway")
    drill.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="S",
        help="seconds until every model must have answered",
    )


def _add_completion(commands: Commands) -> None:
    text = "print what completes these commands at the Tab key"
    completion = add_command(commands, "completion", text)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    completion.epilog = (
        "In ~/.bashrc: source <(herma completion bash); in ~/.zshrc the same with zsh; for fish: "
        "herma completion fish > ~/.config/fish/completions/herma.fish"
    )


def _add_top(commands: Commands) -> None:
    top = add_command(commands, "top", "show the dashboard of a running gateway in this terminal")
    add_gateway_of_file(top)
    add_key_variable(top, "an admin's API key, for a gateway on another host")
    add_command(commands, "grafana", "print a dashboard for Grafana over Prometheus")
    form = top.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="one frame of plain text")
    form.add_argument(
        "--json", action="store_true", help="print everything once as JSON, for programs"
    )


def _add_status(commands: Commands) -> None:
    status = add_command(commands, "status", "show this host's gateways and workers, once")
    status.epilog = "`herma top --once` shows more of one gateway."
    add_whose(status, "processes")


def _add_sessions(commands: Commands) -> None:
    sessions = add_command(commands, "sessions", "show the conversations of agents, or one of them")
    sessions.add_argument(
        "name", nargs="?", metavar="NAME", help="all that is known of one, and of those it began"
    )
    add_gateway_of_file(sessions)
    add_key_variable(sessions, "an admin's API key, for a gateway on another host")
    sessions.add_argument("--json", action="store_true", help="for programs")


def _add_upgrade(commands: Commands) -> None:
    upgrade = add_command(commands, "upgrade", "change to another version, tried before it serves")
    rollback = add_command(commands, "rollback", "go back to the version before the last upgrade")
    for command in (upgrade, rollback):
        command.add_argument(
            "installation",
            nargs="?",
            default="herma",
            metavar="NAME",
            help="herma itself, or the `installation` of a worker's launch",
        )
        command.add_argument("--list", action="store_true", help="the versions of this host")
        command.add_argument(
            "--drain",
            type=float,
            default=600.0,
            metavar="S",
            help="seconds that running requests get to end",
        )
        command.add_argument(
            "--bound",
            type=float,
            default=900.0,
            metavar="S",
            help="seconds until the other version must be ready",
        )
        command.add_argument(
            "--pause", action="store_true", help="go on although requests of a model wait meanwhile"
        )
        command.add_argument(
            "--gateway",
            metavar="URL",
            help="gateway of another host, for a worker host that has none",
        )
        add_key_variable(command, "an admin's API key of that gateway")
    upgrade.add_argument("--wheel", type=Path, metavar="FILE", help="install this wheel")
    upgrade.add_argument("--package", metavar="NAME==VERSION", help="install this from --index")
    upgrade.add_argument("--index", metavar="URL", help="where packages come from")
    upgrade.add_argument("--image", metavar="REF", help="pull this image")
    upgrade.add_argument(
        "--constraints", type=Path, metavar="FILE", help="constraints of the package manager"
    )
    upgrade.add_argument(
        "--share-packages", action="store_true", help="see the packages of the current version"
    )
    upgrade.add_argument(
        "--python", default=sys.executable, metavar="FILE", help="makes the new environment"
    )
    upgrade.add_argument(
        "--smoke",
        metavar="COMMAND",
        help="a command that must succeed first; {version} is the directory or image",
    )
    upgrade.add_argument(
        "--stage", action="store_true", help="install and prove, but do not change over"
    )


def _add_config(commands: Commands) -> None:
    config = add_command(commands, "config", "check and show configuration files")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = add_command(
        actions, "check", "validate a file without starting anything; name all its mistakes"
    )
    check.add_argument(
        "--no-secrets",
        action="store_true",
        help="do not ask for the providers' keys, which this host need not have",
    )
    show = add_command(
        actions, "show", "print each value that takes effect, and where it comes from"
    )
    add_command(actions, "reference", "print every key with its default, as a page")
    for action in (check, show):
        action.add_argument(
            "file", type=Path, nargs="?", metavar="FILE", help="default: herma.toml, as found"
        )


def _add_init(commands: Commands) -> None:
    init = add_command(commands, "init", "write a commented configuration file; asks at a terminal")
    init.add_argument(
        "--output", type=Path, default=Path("herma.toml"), metavar="FILE", help="the new file"
    )
    init.add_argument("--force", action="store_true", help="overwrite the file")
    init.add_argument("--model", metavar="DIR", help="a model for Herma's own engine, or a hub id")
    init.add_argument("--port", type=port, metavar="N", help="of the gateway; default: 8080")
    init.add_argument(
        "--key", metavar="NAME", help="add a key of this name, and print its secret once"
    )
    add_attach_options(init)


def _add_keys(commands: Commands) -> None:
    keys = add_command(commands, "keys", "make API keys and CURVE pairs")
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = add_command(actions, "new", "print a new API key and its [[keys]] table")
    new.add_argument("name", metavar="NAME", help="the name of the key in logs, usage and limits")
    curve = add_command(
        actions, "curve", "make a CURVE pair: write the secret to FILE, print the public key"
    )
    curve.add_argument("file", type=Path, metavar="FILE", help="a new file for the secret")


def _add_usage(commands: Commands) -> None:
    usage = add_command(commands, "usage", "show tokens and cost by key, model, provider and day")
    add_file(usage, "default: that of the running gateway, else herma.toml, as found")
    usage.add_argument("--url", help="of the gateway of this host whose ledger is read")
    usage.add_argument("--ledger", type=Path, metavar="FILE", help="the ledger itself")
    usage.add_argument(
        "--by",
        action="append",
        choices=("day", "key", "model", "provider", "conversation"),
        help="group by; may be repeated (default: provider and model)",
    )
    usage.add_argument(
        "--since", metavar="DAY", help="2026-11-21, or 7d for seven days; default: this month (UTC)"
    )
    usage.add_argument("--json", action="store_true", help="for programs")
