"""`herma keys new NAME` and `herma keys curve FILE`.

Owns how fresh secrets are shown: once, never stored by us.
"""

import argparse
import secrets

from config import hash_api_key

_KEY_BYTES = 24


def run(arguments: argparse.Namespace) -> int:
    """Make the secret that was asked for and print what goes into the configuration."""
    if arguments.action == "new":
        print(_new_api_key(arguments.name))
        return 0
    from protocol.transport import write_curve_pair

    public = write_curve_pair(arguments.file)
    print(f"secret written to {arguments.file}\npublic key: {public}")
    return 0


def _new_api_key(name: str) -> str:
    secret = f"sk-herma-{secrets.token_urlsafe(_KEY_BYTES)}"
    table = f'[[keys]]\nname = "{name}"\nhash = "{hash_api_key(secret)}"'
    return f"key (shown once): {secret}\n\n{table}"
