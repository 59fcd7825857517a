"""The results of a run, in a file from the first result on.

Owns the file: a run ended by a time limit or a fault leaves its results so far, marked as
unfinished.
"""

import json
from pathlib import Path
from typing import Any, final


@final
class Report:
    """Named parts in the order of arrival. None for `path` keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self.parts: dict[str, Any] = {"finished": False}
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, **parts: Any) -> None:  # noqa: ANN401 -- whatever JSON can say
        """Add or replace parts. Raises `OSError`."""
        self.parts |= parts
        if self._path is not None:
            # The rename makes the file complete at any moment.
            fresh = self._path.with_name(f".{self._path.name}.part")
            fresh.write_text(f"{json.dumps(self.parts, indent=2)}\n", encoding="utf-8")
            fresh.replace(self._path)
