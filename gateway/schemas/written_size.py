"""How large a schema is once it is written.

Owns the bound, which holds before anything is written: parts of a schema of some kilobytes may be
written so often that they fill the memory. Must not know keywords.
"""

from typing import Final

MAX_VALUES: Final = 2**17
"""The text of a schema with more values is larger than that of any grammar."""


class SchemaTooLarge(Exception):
    """The enforced schema would have more than `MAX_VALUES` values."""


def check_size(parts: list[object]) -> None:
    """Raise `SchemaTooLarge` for too many values, with each part as often as it is written."""
    num_values = len(parts)
    while parts:
        part = parts.pop()
        if isinstance(part, dict | list):
            num_values += len(part)
            if num_values > MAX_VALUES:
                raise SchemaTooLarge
            parts.extend(part.values() if isinstance(part, dict) else part)
