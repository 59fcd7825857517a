"""The version of the distribution.

Owns the one place where it stands: the build reads it here, and a source tree that is not
installed knows it too.
"""

from typing import Final

VERSION: Final = "0.1.0"
