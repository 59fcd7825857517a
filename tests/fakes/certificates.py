"""Certificates for servers of tests."""

import ssl
import subprocess
from pathlib import Path
from typing import Final


class Authority:
    """A private one: `certificate` is what clients trust. `issue` writes a chain of one and its key
    for localhost and 127.0.0.1, in place of those that were there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate = folder / "authority.pem"
        self._key = folder / "authority.key"
        argv = ["req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=A private authority"]
        _openssl(*argv, "-out", self.certificate, "-keyout", self._key)

    def issue(self, certificate: Path, key: Path) -> None:
        request, extensions = self._folder / "request.pem", self._folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        new_key, new = self._folder / "new.key", self._folder / "new.pem"
        _openssl("req", *_NEW_KEY, "-subj", "/CN=localhost", "-out", request, "-keyout", new_key)
        argv = ["x509", "-req", "-in", request, "-days", "2", "-extfile", extensions]
        authority = ["-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"]
        _openssl(*argv, *authority, "-out", new)
        new_key.replace(key)
        new.replace(certificate)


_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def certificate_for(name: str, folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that signs itself, for `name` only, and a server that shows it."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    argv = ["req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}"]
    named = ["-addext", f"subjectAltName=DNS:{name}"]
    _openssl(*argv, *named, "-out", certificate, "-keyout", key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return certificate, context
