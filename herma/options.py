"""The common parts of the options of all commands: the layout of their help, and value types.

Must not know any command.
"""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from herma import EXIT_EXPLAINED

MAX_PORT = 65_535
MAX_PROCESSES = 64

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
Options: TypeAlias = "argparse._ActionsContainer"  # noqa: SLF001
"""A parser, or a group of its options."""
_MAX_HELP_COLUMN: Final = 30
"""Longer names have a line of their own; argparse's 24 would do that to many."""

_MIN_NAME_WIDTH: Final = 15
"""`    speculation`: argparse measures the names of commands without their indent."""


_WRONG_CHOICE: Final = re.compile(
    r"argument (?P<kind>COMMAND|ACTION|\[status[^]]*\]): invalid choice: '(?P<name>[^']*)' "
    r"\(choose from (?P<known>.*)\)"
)
_KNOWN_ELSEWHERE: Final = {
    **dict.fromkeys(("run", "serve", "start"), "up"),
    **dict.fromkeys(("list", "ls", "ps"), "status"),
    "check": "config check",
    "help": "--help",
    "version": "--version",
}
"""The names that other programs have for these commands."""
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
    """Names what was probably meant by a wrong command or option, and the option for a file that
    stands alone. The command that takes the words refuses them, in one line.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """See argparse, which would let the program itself refuse a command's words."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """See argparse. One line: the usage and the list of all commands are for `--help`."""
        if (wrong := _WRONG_CHOICE.search(message)) is not None:
            known = [name.strip("'") for name in wrong["known"].split(", ")]
            near = difflib.get_close_matches(wrong["name"], known, n=1)
            if wrong["kind"] == "COMMAND" and wrong["name"] in _KNOWN_ELSEWHERE:
                near = [_KNOWN_ELSEWHERE[wrong["name"]]]
            hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists them"
            what = "command" if wrong["kind"] == "COMMAND" else "action"
            message = f"there is no {what} {wrong['name']!r}: {hint}"
        elif (left := _LEFT_OVER.fullmatch(message)) is not None:
            message = self._left_over(left["words"])
        elif message.endswith("required: ACTION"):
            (actions,) = (one.choices for one in self._actions if one.metavar == "ACTION")
            message = f"it needs an action: {', '.join(actions or ())}"
        if not any(hint in message for hint in ("--help", "did you mean", "--config FILE")):
            message += f"; `{self.prog} --help` lists the options"
        self.exit(EXIT_EXPLAINED, f"{self.prog}: error: {message}\n")

    def _left_over(self, words: str) -> str:
        """The error for words that no option takes."""
        first = words.split(maxsplit=1)[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        if first.startswith("-"):
            near = difflib.get_close_matches(first, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists them"
            return f"there is no option {first}: {hint}"
        hint = " (the file is named by --config FILE)" if ".toml" in words else ""
        return f"unrecognized arguments: {words}{hint}"


def add_command(commands: Commands, name: str, does: str) -> argparse.ArgumentParser:
    """Add a command whose help begins with the same text as the list of commands."""
    text = f"{does[:1].upper()}{does[1:]}."
    return commands.add_parser(name, help=does, description=text, formatter_class=HelpFormat)


def add_cache(commands: Commands) -> None:
    """Add `herma cache clear`."""
    cache = add_command(commands, "cache", "forget cached prefixes, on cards and on the host")
    actions = cache.add_subparsers(dest="action", metavar="ACTION")
    clear = add_command(actions, "clear", "forget all that no request uses")
    clear.add_argument("worker", nargs="?", metavar="NAME", help="default: all of them")
    add_whose(clear, "workers")


def add_file(command: Options, text: str, default: str | None = None) -> None:
    """Add `--config FILE`; `text` is its help."""
    command.add_argument("--config", type=Path, metavar="FILE", default=default, help=text)


def add_key_variable(command: argparse.ArgumentParser, whose: str) -> None:
    """Add `--key-env NAME`: the variable with `whose` API key."""
    command.add_argument("--key-env", metavar="NAME", help=f"variable with {whose}")


def add_whose(
    command: argparse.ArgumentParser, what: str, default: str | None = None
) -> "argparse._MutuallyExclusiveGroup":
    """Add the choice between `what` (processes, workers) of one file and all of this user."""
    whose = command.add_mutually_exclusive_group()
    add_file(whose, f"the {what} of this file; default: herma.toml, as found, else all", default)
    text = f"all {what} of this user, whatever file they run"
    whose.add_argument("--all", action="store_true", help=text)
    return whose


def add_gateway_of_file(command: argparse.ArgumentParser) -> None:
    """Add the options that name a running gateway: by its URL, or by its file."""
    command.add_argument(
        "--url", help="of the gateway; default: that of the file, else the one on this host"
    )
    add_file(command, "the file of the gateway; default: herma.toml, as found")


def add_one_worker(action: argparse.ArgumentParser) -> None:
    """Add what names one worker of this host."""
    action.add_argument("worker", metavar="NAME")
    which = action.add_mutually_exclusive_group()
    which.add_argument(
        "--config",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="its file; default: herma.toml, as found, else that of any file",
    )
    which.add_argument("--pid", type=int, help="its supervisor, if several have the name")


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
