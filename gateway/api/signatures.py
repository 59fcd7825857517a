"""Signatures, which prove that reasoning came from this gateway.

Owns the use of the key: signatures of a text, and blobs that hold a text. Clients send both back in
later turns; those that another server made are recognised and dropped. The text is no secret: the
client has seen it. Must not know where the key is kept.
"""

import base64
import binascii
import hmac
import zlib
from typing import Final

KEY_BYTES: Final = 32

MAX_TEXT_BYTES: Final = 8 * 2**20
"""The bound on the text in a blob. A compressed blob that holds more is an attack."""

_MAC_BYTES: Final = 32
_REASONING: Final = b"reasoning"


class Signer:
    """Signs with `key`, which all gateway processes behind one address share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "<Signer>"

    def signature(self, text: str) -> str:
        """The signature of `text`."""
        return base64.b64encode(self._mac(b"thinking", _bytes(text))).decode()

    def is_signed(self, text: str, signature: str) -> bool:
        """Whether `signature` is ours of exactly this text."""
        return hmac.compare_digest(_bytes(self.signature(text)), _bytes(signature))

    def sealed(self, text: str, purpose: bytes = _REASONING) -> str:
        """A blob that holds `text`, for that purpose only."""
        packed = zlib.compress(_bytes(text))
        return base64.b64encode(self._mac(purpose, packed) + packed).decode()

    def unsealed(self, blob: str, purpose: bytes = _REASONING) -> str | None:
        """The text in `blob`; None if this gateway did not make it for that purpose."""
        try:
            data = base64.b64decode(blob, validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, packed = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(purpose, packed)):
            return None
        text = zlib.decompressobj().decompress(packed, MAX_TEXT_BYTES)
        return text.decode("utf-8", "surrogatepass")

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + data, "sha256")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
