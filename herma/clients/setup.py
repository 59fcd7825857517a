"""What a client needs to use a gateway: its file, and the command line that runs it.

Owns the share of a window that an answer gets. Must not know any client.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_ANSWER_TOKENS: Final = 32_000
"""The most tokens that are kept for an answer. opencode asks for no more, even if its file says
more.
"""

NO_KEY: Final = "any"
"""The key that is sent where the gateway asks for none and the client refuses to run without
one.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A client's configuration for one gateway.

    `text` is a whole file with nothing else in it, and is printed. `merge` puts it into the text of
    the user's file and raises `HermaError` where it cannot. `argv` runs the client with the
    variables `environ`, and with `files` by path written before: the user's own file stays as it
    is. A client that `needs_file` can only be run with its own file written.
    """

    program: str
    path: Path
    text: str
    merge: Callable[[str], str]
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    needs_file: bool = False
    warnings: tuple[str, ...] = ()
    install: str = ""


def answer_share(window: int) -> int:
    """The tokens of a window that are kept for one answer: a fifth, at most what clients ask for.
    A prompt that grows beyond the rest is compacted.
    """
    return min(window // 5, MAX_ANSWER_TOKENS)
