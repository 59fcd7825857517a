"""The authorities that httpx trusts, read once in a process: `read_once`.

httpx makes a TLS context for each client, also for one that speaks plain HTTP, and reads all
authorities into it: 20 to 60 ms of a processor, for each `httpx.get` too. A run of the tests makes
thousands of clients. Owns that one context; must not know who uses it.
"""

import os
import ssl
from functools import cache
from typing import Any

import certifi

_create = ssl.create_default_context


def read_once() -> None:
    """From now on, in this process."""
    ssl.create_default_context = _created


def _created(*purpose: ssl.Purpose, **given: Any) -> ssl.SSLContext:
    """As the original, but a context that trusts just what httpx trusts is the same one."""
    file = given.get("cafile")
    if not purpose and len(given) == 1 and file in (certifi.where(), os.getenv("SSL_CERT_FILE")):
        return _usual(file)
    return _create(*purpose, **given)


@cache
def _usual(file: str) -> ssl.SSLContext:
    return _create(cafile=file)
