"""The model's refusals: one sentence for each reason.

An answer with any of them is right.
"""

from typing import Final

NO_TOOL: Final = "I have no tool for that."
UNKNOWN: Final = "I do not know that."
OUTSIDE: Final = "That is outside of what I can do."
REFUSALS: Final = (NO_TOOL, UNKNOWN, OUTSIDE)
