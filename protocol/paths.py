"""Paths of HTTP requests that are passed on to another server.

Owns which paths are plain: two servers can read a plain path in one way only. Must not know which
paths exist.
"""

import re
from typing import Final

_SEGMENT: Final = r"[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9._~!$&'()*+,=:@-]*"
_PLAIN: Final = re.compile(rf"(?:/{_SEGMENT})+")


def is_plain_path(path: str) -> bool:
    """Whether `path` is segments behind single slashes, without escapes (`%`), segments that begin
    with a dot, backslashes, semicolons, queries or fragments. What such a path names does not
    depend on who decodes or normalises it.
    """
    return _PLAIN.fullmatch(path) is not None
