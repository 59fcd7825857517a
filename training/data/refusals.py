"""How the model says that it cannot: one sentence for each reason.

Owns the sentences. An answer that says so plainly is right, whichever of them it takes.
"""

from typing import Final

NO_TOOL: Final = "I have no tool for that."
UNKNOWN: Final = "I do not know that."
OUTSIDE: Final = "That is outside of what I can do."
REFUSALS: Final = (NO_TOOL, UNKNOWN, OUTSIDE)
