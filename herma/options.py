"""The common parts of the options of all commands: the layout of their help, and value types.

Must not know any command.
"""

import argparse
import difflib
import re
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

MAX_PORT = 65_535
MAX_PROCESSES = 64

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
_MAX_HELP_COLUMN: Final = 30
"""Longer names have a line of their own; argparse's 24 would do that to many."""

_MIN_NAME_WIDTH: Final = 15
"""`    speculation`: argparse measures the names of commands without their indent."""


_WRONG_CHOICE: Final = re.compile(
    r"argument (?P<kind>COMMAND|ACTION): invalid choice: '(?P<name>[^']*)' "
    r"\(choose from (?P<known>.*)\)"
)
_LEFT_OVER: Final = re.compile(r"unrecognized arguments: (?P<words>.*)")


class HelpFormat(argparse.ArgumentDefaultsHelpFormatter):
    """Names and texts of all commands in two columns, with defaults behind the texts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_MAX_HELP_COLUMN)
        self._action_max_length = _MIN_NAME_WIDTH

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if not action.default or "default:" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class CommandParser(argparse.ArgumentParser):
    """Names what was probably meant by a wrong command, and the option for a file that stands
    alone.
    """

    def error(self, message: str) -> NoReturn:
        """See argparse. The list of all commands is for `--help`."""
        if (wrong := _WRONG_CHOICE.search(message)) is not None:
            known = [name.strip("'") for name in wrong["known"].split(", ")]
            near = difflib.get_close_matches(wrong["name"], known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists what is"
            what = "command" if wrong["kind"] == "COMMAND" else wrong["kind"].lower()
            message = f"there is no {what} {wrong['name']!r}: {hint}"
        elif (left := _LEFT_OVER.fullmatch(message)) is not None and ".toml" in left["words"]:
            message += " (the file is named by --config FILE)"
        super().error(message)


def add_command(commands: Commands, name: str, does: str) -> argparse.ArgumentParser:
    """Add a command whose help begins with the same text as the list of commands."""
    text = f"{does[:1].upper()}{does[1:]}."
    return commands.add_parser(name, help=does, description=text, formatter_class=HelpFormat)


def add_cache(commands: Commands) -> None:
    """Add `herma cache clear`."""
    cache = add_command(commands, "cache", "forget cached prefixes, on cards and on the host")
    actions = cache.add_subparsers(dest="action", metavar="ACTION")
    clear = add_command(actions, "clear", "forget all that no request uses")
    clear.add_argument(
        "worker", nargs="?", metavar="NAME", help="default: all workers of this host"
    )


def add_gateway_of_file(command: argparse.ArgumentParser) -> None:
    """Add the options that name a running gateway: by its URL, or by its file."""
    command.add_argument(
        "--url", help="of the gateway; default: that of the file, else the one on this host"
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the file of the gateway; default: herma.toml, as found",
    )


def token_count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens")


def port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 0 (any free one) to {MAX_PORT}")


def process_count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PROCESSES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a process count; use 1 to {MAX_PROCESSES}")


def add_vocabulary(command: argparse.ArgumentParser) -> None:
    """How a worker keeps the head and the embedding."""
    command.add_argument(
        "--head",
        choices=("auto", "fp8", "int4"),
        default="auto",
        help="form of the output head, as on a worker; default: as in the checkpoint",
    )
    command.add_argument(
        "--embedding",
        choices=("auto", "host"),
        default="auto",
        help="host: in the host's memory, as on a worker; default: on the card",
    )
