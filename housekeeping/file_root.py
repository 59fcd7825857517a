"""The root of a machine's file system: this machine's, or a copy of another machine's.

Owns where the machine's files lie on this host. Must not know what they say.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileRoot:
    """`root` is the place of a machine's file system on this host."""

    root: Path

    def path(self, name: str | Path) -> Path:
        """The path here of the machine's absolute path `name`."""
        return self.root / str(name).lstrip("/")

    def text(self, name: str | Path) -> str:
        """The file's text; empty if it cannot be read."""
        with suppress(OSError):
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        return ""
