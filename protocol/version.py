"""The version of the distribution.

Owns the only definition: the build reads it here, and it exists in a source tree that is not
installed.
"""

from typing import Final

VERSION: Final = "0.1.0"
