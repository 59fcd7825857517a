"""What a command asks a running gateway over HTTP, with an admin's key.

Owns which gateway the options name, and takes an error out of the exception groups of trio. Must
not know what is asked.
"""

import argparse
import os
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeVar

import trio

from herma.processes import gateway_url
from herma.top import GatewayPage, admin_key
from housekeeping.errors import innermost
from protocol.errors import HermaError

T = TypeVar("T")


def asked_of_gateway(
    arguments: argparse.Namespace, ask: Callable[[GatewayPage], Awaitable[T]]
) -> T:
    """What `ask` returns for the gateway that the options name. Raises `HermaError` if it does not
    answer or refuses the key.
    """
    url = gateway_url(arguments.url, arguments.config)
    page = GatewayPage(url, admin_key(arguments.key_env, os.environ))
    try:
        with closing(page):
            return trio.run(ask, page)
    except* HermaError as group:
        raise innermost(group) from None
