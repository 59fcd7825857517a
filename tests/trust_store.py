"""The authorities that httpx trusts, read once in a process: `read_once`.

httpx makes a TLS context for each client, also for one that speaks plain HTTP, and reads certifi's
authorities into it: 20 to 60 ms of a processor, for each `httpx.get` too. A run of the tests makes
thousands of clients. Owns that one context; must not know who uses it.
"""

import ssl
from functools import cache
from typing import Any

import certifi

_create = ssl.create_default_context


def read_once() -> None:
    """From now on, in this process."""
    ssl.create_default_context = _created


def _created(*purpose: ssl.Purpose, **given: Any) -> ssl.SSLContext:
    """As the original, but the context that trusts certifi's authorities alone is the same one."""
    if not purpose and given == {"cafile": certifi.where()}:
        return _certifi()
    return _create(*purpose, **given)


@cache
def _certifi() -> ssl.SSLContext:
    return _create(cafile=certifi.where())
