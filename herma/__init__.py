"""The commands.

`cli` reads the command line and imports a command's module only when it runs.
"""

from typing import Final

__all__ = ["EXIT_EXPLAINED"]

EXIT_EXPLAINED: Final = 2
"""The exit status of a command that printed one line about what is wrong. A second run would
end the same way.
"""
