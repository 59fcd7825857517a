"""The dashboard's page: its parts as one document.

Owns which files make the page, and the policy by which a browser runs nothing else and asks no
other host. Must not know HTTP or what the page shows.
"""

import hashlib
from base64 import b64encode
from importlib.resources import files
from typing import Final

_SCRIPTS: Final = ("format.js", "charts.js", "tables.js", "request.js", "main.js")
_STYLE_MARK: Final = "/* style */"
_SCRIPT_MARK: Final = "/* script */"


def page() -> tuple[bytes, str]:
    """The document, and its Content-Security-Policy."""
    folder = files("gateway.dashboard") / "page"
    style = (folder / "page.css").read_text("utf-8")
    script = "".join((folder / name).read_text("utf-8") for name in _SCRIPTS)
    document = (folder / "page.html").read_text("utf-8")
    document = document.replace(_STYLE_MARK, style).replace(_SCRIPT_MARK, script)
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; "
        f"style-src {_hash_of(style)}; script-src {_hash_of(script)}"
    )
    return document.encode(), policy


def _hash_of(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
