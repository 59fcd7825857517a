"""The base of all errors, and the error for wrong input of an operator.

Owns these two. `protocol.errors` has the whole tree, and all others import them from there. Also
finds the error within the groups that trio puts around it.
"""


class HermaError(Exception):
    """Base of every error that Herma raises on purpose; people read its text."""


class ConfigError(HermaError):
    """A file, address or key that the operator gave is wrong; the text names it."""


def innermost(group: BaseException) -> BaseException:
    """The first error within nested groups, or the error itself if it is no group."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
