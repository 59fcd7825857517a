"""What is wrong with a configuration, and where.

Owns how a place in the file is called. Must not know any rule.
"""

import json
import re
from typing import NamedTuple

from config.places import Place

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Fault(NamedTuple):
    """A rule that is broken at `place`: in words that name the remedy and not the file."""

    place: Place
    text: str


def title(place: Place) -> str:
    """The table at `place`: [providers.cloud], [workers[0]]."""
    return f"[{dotted(place)}]" if place else "the top level"


def name_of(place: Place) -> str:
    """The key or item at `place`, with its table: [workers[0]] gateways[1]."""
    at = max((i for i, part in enumerate(place) if isinstance(part, str)), default=0)
    name = dotted(place[at:])
    return f"{title(place[:at])} {name}" if at else f"`{name}`"


def dotted(place: Place) -> str:
    """As TOML writes it, with items by their number."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{key}" if text else key
    return text
