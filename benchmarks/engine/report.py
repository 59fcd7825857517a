"""What a run has found, kept in a file from its first result on.

Owns the file: a run that a time limit or a fault ends leaves what it knew, marked as unfinished.
Must not know what the parts mean.
"""

import json
from pathlib import Path
from typing import Any, final


@final
class Report:
    """Named parts, in the order in which they came; None for `path` keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self.parts: dict[str, Any] = {"finished": False}
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, **parts: Any) -> None:  # noqa: ANN401 -- whatever JSON can say
        """Add or replace parts. Raises `OSError`."""
        self.parts |= parts
        if self._path is not None:
            # Never half a file, whenever the end comes.
            fresh = self._path.with_name(f".{self._path.name}.part")
            fresh.write_text(f"{json.dumps(self.parts, indent=2)}\n", encoding="utf-8")
            fresh.replace(self._path)
