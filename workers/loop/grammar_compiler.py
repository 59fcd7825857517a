"""The seam between the loop and what compiles grammars.

Owns its shape: grammars are begun, and are ready some turns of the loop later. Must not know how
one is compiled, nor what a grammar is to the runner.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol

from protocol.messages import Grammar
from workers.scheduler import Key


class Compiled(NamedTuple):
    """The grammar of the sequence `key`, behind the outputs that it has so far; None if it cannot
    be enforced because of the `error`, which is for the client.
    """

    key: Key
    grammar: object | None
    error: str = ""


class GrammarCompiler(Protocol):
    """Compiles beside the steps. Called by the thread of the loop only."""

    def begin(self, key: Key, grammar: Grammar, outputs: array[int]) -> None:
        """Compile it; `take_done` returns it once. `outputs` are those of earlier attempts."""

    def take_done(self) -> list[Compiled]:
        """Those that are ready now."""
