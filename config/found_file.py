"""The configuration file that a command reads when none is named.

Owns the two places. Must not read the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

FILE_NAME: Final = "herma.toml"


def found_config(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """`herma.toml` in `folder`, else in the user's configuration directory; None without one."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME", "/")) / ".config"
    return next(
        (path for path in (folder / FILE_NAME, home / "herma" / FILE_NAME) if path.is_file()), None
    )
