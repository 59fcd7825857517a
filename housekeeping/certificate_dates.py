"""Until when a certificate in a PEM file is valid.

Owns the way through its DER encoding to the field `notAfter`, which the standard library reads only
of authorities and of peers that it trusts. Must not know who uses the certificate.
"""

import ssl
from datetime import UTC, datetime
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END_OF_PEM: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_LONG: Final = 0x80


def expires_at(pem: str) -> float | None:
    """The Unix time until which the first certificate of the text is valid; None if it has none
    that can be read.
    """
    begin = pem.find(_BEGIN)
    end = pem.find(END_OF_PEM, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(END_OF_PEM)]))
    except (ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """The field `notAfter`. Raises `ValueError` or `IndexError` if `data` is not a certificate."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    at = end if tag == _VERSION else at
    for _ in range(3):  # serial number, algorithm, issuer
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)  # notBefore
    tag, begin, end = _element(der, at)
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    text = der[begin:end].decode("ascii")
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at `at`, and where its content begins and ends."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length >= _LONG:
        num_bytes = length - _LONG
        length = int.from_bytes(der[begin : begin + num_bytes], "big")
        begin += num_bytes
    return tag, begin, begin + length
