"""The commands of the clients and their options. Must import nothing that asks a gateway: every
command's help needs this module.
"""

from typing import Final

from herma.options import Commands, add_command, add_gateway_of_file

CLIENTS: Final = {
    "codex": "codex",
    "claude-code": "Claude Code",
    "opencode": "opencode",
    "qwen-code": "qwen-code",
    "hermes": "Hermes Agent",
}
"""The command of each client, and the client's own name."""


def add_clients(commands: Commands) -> None:
    """Add a command for each client."""
    for name, title in CLIENTS.items():
        command = add_command(
            commands, name, f"print {title}'s configuration for this gateway, or run it"
        )
        add_gateway_of_file(command)
        command.add_argument(
            "--model", metavar="ID", help=f"{title}'s default; else the first one listed"
        )
        command.add_argument(
            "--key-env", metavar="NAME", help="the environment variable that holds the API key"
        )
        command.add_argument(
            "--write",
            action="store_true",
            help="merge it into the client's own file; the old one is kept beside it",
        )
        command.add_argument(
            "--output", metavar="FILE", help="the file of --write; default: the client's own"
        )
        command.add_argument(
            "--run", action="store_true", help="run the client with it, and write nothing of its"
        )
        command.add_argument(
            "arguments", nargs="*", metavar="-- ARGS", help="run the client with these arguments"
        )
