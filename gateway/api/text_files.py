"""Files of text in messages, whose text a model of text can read.

Owns which types of files are text, how their data is decoded, and the line that names the file.
Must not know parts of messages.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

_DATA_URL: Final = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.ASCII)
_CHARSET: Final = re.compile(r";\s*charset=\"?([\w.:-]+)", re.IGNORECASE)
_TEXTS: Final = frozenset(
    {
        "application/json",
        "application/ld+json",
        "application/x-ndjson",
        "application/jsonl",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
        "application/x-javascript",
        "application/typescript",
        "application/ecmascript",
        "application/sql",
        "application/graphql",
        "application/x-sh",
        "application/x-shellscript",
        "application/x-python",
        "application/x-python-code",
        "application/x-httpd-php",
        "application/x-tex",
        "application/rtf",
        "image/svg+xml",
    }
)
_UNKNOWN: Final = frozenset({"", "application/octet-stream"})
_NAMES: Final = re.compile(
    r"\.(txt|text|md|markdown|rst|csv|tsv|json|jsonl|ndjson|xml|html?|css|ya?ml|toml|ini|cfg|conf|"
    r"log|diff|patch|py|js|mjs|ts|tsx|jsx|java|kt|c|h|cc|cpp|hpp|cs|go|rs|rb|php|pl|sh|bash|sql|"
    r"tex|svg|swift|scala|lua|r)\Z",
    re.IGNORECASE,
)
_MAX_ENDING: Final = 16


def named_text(file: Mapping[str, Any]) -> str | None:
    """The text of a chat's file under its name; None if it is no text."""
    name = file.get("filename")
    text = text_of_file(file.get("file_data"), name)
    return None if text is None else "\n".join([*heading(File=name), text])


def heading(**facts: object) -> list[str]:
    """The lines over a text that tell the model what it is: one for each fact that is known."""
    return [f"{name}: {fact}" for name, fact in facts.items() if isinstance(fact, str) and fact]


def text_of_file(data: object, name: object = None) -> str | None:
    """The text in `data` (a data URL, or base64 of a file of that name); None if it is no text."""
    if not isinstance(data, str):
        return None
    url = _DATA_URL.match(data)
    if url is None:
        is_text = _is_text_name(name)
        return _decoded(_from_base64(data)) if is_text and not _is_address(data) else None
    kind = url[1].strip().lower()
    by_name = kind in _UNKNOWN and _is_text_name(name)
    if not (by_name or is_text_type(kind)):
        return None
    rest = data[url.end() :]
    charset = _CHARSET.search(url[2])
    is_base64 = url[2].lower().endswith(";base64")
    return _decoded(
        _from_base64(rest) if is_base64 else unquote_to_bytes(rest),
        charset[1] if charset is not None else "utf-8",
    )


def is_text_type(kind: str) -> bool:
    """Whether files of this media type are text."""
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml", "+yaml"))


def _is_address(data: str) -> bool:
    return data.startswith(("http:", "https:"))


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _decoded(data: bytes | None, charset: str = "utf-8") -> str | None:
    if data is None:
        return None
    try:
        return data.decode(charset).removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError):
        return None


def _is_text_name(name: object) -> bool:
    return isinstance(name, str) and _NAMES.search(name[-_MAX_ENDING:]) is not None
