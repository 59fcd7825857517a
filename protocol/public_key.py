"""What a CURVE public key looks like.

Owns the form, which a configuration is held to as well. Must not know zmq or key files.
"""

import re
from typing import Final

KEY_FORM: Final = "the 40 characters that `herma keys curve` printed"

_Z85: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


def has_key_form(text: str) -> bool:
    """Whether `text` can be a key of CURVE, public or secret: 40 characters of Z85."""
    return _Z85.fullmatch(text) is not None
