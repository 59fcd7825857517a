"""Checks the certificate that a configuration names.

Owns the verdict on whether it is valid today. Must not know how a certificate is encoded.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from config import Config
from herma.doctor.finding import Finding
from herma.doctor.host import Host
from housekeeping.certificate_dates import expires_at

CHECK: Final = "certificate"

_SOON_S: Final = 14 * 86_400
"""How long before its end a certificate is reported. Certificates for 90 days are renewed 30
days before their end.
"""


def check_certificate(host: Host, config: Config) -> Iterator[Finding]:
    """Check until when the gateway's certificate is valid. The start checks the rest of it."""
    name = config.gateway.tls_certificate_file
    if name is None:
        return
    path = Path(name).expanduser().absolute()
    ends_at = expires_at(host.text(path))
    left_s = None if ends_at is None else ends_at - host.unix_time()
    if ends_at is None or left_s is None:
        yield Finding(
            "error",
            CHECK,
            f"{path} holds no certificate that can be read",
            "a gateway does not start with it, and one that runs keeps the old one",
            "put a PEM chain there, or correct [gateway] tls_certificate_file",
        )
    elif left_s < _SOON_S:
        day = datetime.fromtimestamp(ends_at, UTC)
        when = "has expired on" if left_s < 0 else "expires on"
        yield Finding(
            "error" if left_s < 0 else "warning",
            CHECK,
            f"{path} {when} {day:%Y-%m-%d %H:%M} UTC",
            "clients that check certificates refuse to connect from then on",
            "renew it and replace the file and its key; a gateway that runs reads them by itself",
        )
