"""Certificates for servers of tests."""

import ssl
import subprocess
from pathlib import Path


def certificate_for(name: str, folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signs itself, for `name` only, and a server that shows it."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=DNS:{name}",
    ]
    subprocess.run([*argv, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return certificate, context
