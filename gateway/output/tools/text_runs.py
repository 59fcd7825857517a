"""Texts in a notation that go on as they come: runs of plain characters at once.

Owns what a text is as JSON. Must not know where it ends.
"""

import re
from typing import Final

from gateway.output.tools.schema import quote


class TextRun:
    """A text of which `marks` are no plain characters; a `RunReader`. While it `is_held`, the next
    character may not be one of the text.
    """

    def __init__(self, marks: str) -> None:
        self._plain: Final = re.compile(f"[^{re.escape(marks)}]+")
        self._out: list[str] = []
        self.is_held = False
        self.is_empty = True

    @property
    def is_quiet(self) -> bool:
        """See `RunReader`. The first characters may be a quote of another kind."""
        return not self.is_held and not self._out and not self.is_empty

    def feed_plain(self, text: str, at: int) -> int:
        """See `RunReader`."""
        run = None if self.is_held else self._plain.match(text, at)
        if run is None:
            return at
        self._out.append(quote(run[0])[1:-1])
        self.is_empty = False
        return run.end()

    def take(self) -> str:
        """See `RunReader`."""
        text = "".join(self._out)
        self._out.clear()
        return text
