"""The base of all errors, and the error of what an operator gave.

Owns these two. `protocol.errors` has the whole tree, and all others import them from there.
"""


class HermaError(Exception):
    """Base of every error that Herma raises on purpose; people read its text."""


class ConfigError(HermaError):
    """A file, address or key that the operator gave is wrong; the text names it."""
