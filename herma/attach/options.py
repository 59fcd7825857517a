"""The options `--attach` and `--cloud`.

Owns their names and help. Must import nothing of what they do: each `--help` reads this module.
"""

import argparse

from herma.options import token_count


def add_attach_options(command: argparse.ArgumentParser) -> None:
    """Add the options that `text_of` reads."""
    command.add_argument(
        "--attach",
        action="append",
        metavar="URL",
        help="a server that runs already (vLLM, SGLang, llama.cpp, Ollama, LiteLLM or another with "
        "OpenAI's API); repeatable",
    )
    command.add_argument(
        "--attach-key-env", metavar="NAME", help="the variable with the API key of that server"
    )
    command.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="a directory or hub id with its tokenizer, where the server does not name it",
    )
    command.add_argument(
        "--context-length",
        type=token_count,
        metavar="N",
        help="the window of those servers in tokens, where they do not say it, or a smaller one",
    )
    command.add_argument(
        "--cloud", metavar="URL", help="the base URL of a provider to fall back to"
    )
    command.add_argument(
        "--cloud-key-env", metavar="NAME", help="the variable with the API key of the provider"
    )
    command.add_argument(
        "--cloud-model", metavar="NAME", help="the provider's model; default: the local name"
    )
