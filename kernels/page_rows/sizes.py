"""The size of the pieces in which a block is copied and summed."""

from typing import Final

SUM_WORDS: Final = 1024
"""Words that one program copies and sums."""
