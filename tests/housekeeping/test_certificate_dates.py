"""Until when a certificate is valid, beside what openssl says."""

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from housekeeping.certificate_dates import expires_at
from tests.fakes.certificates import certificate_for

HEAD = "-----BEGIN CERTIFICATE-----\n"
TAIL = "-----END CERTIFICATE-----\n"


def test_the_date_is_that_of_openssl(tmp_path: Path) -> None:
    """The date is that of openssl, also for a certificate behind other text, and for the first one
    of a chain.
    """
    path, _ = certificate_for("localhost", tmp_path)
    argv = ["openssl", "x509", "-in", str(path), "-noout", "-enddate"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    ends_at = ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))
    pem = path.read_text()
    assert expires_at(pem) == ends_at
    assert expires_at(f"subject=x\n{pem}{HEAD}AAAA\n{TAIL}") == ends_at


def test_a_date_behind_2049_is_read(tmp_path: Path) -> None:
    """A date after 2049, which has another form, is read."""
    path = tmp_path / "c.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "20000"]
    files = ["-subj", "/CN=x", "-out", str(path), "-keyout", str(tmp_path / "k.pem")]
    subprocess.run([*argv, *files], capture_output=True, check=True)
    ends_at = expires_at(path.read_text())
    assert ends_at is not None
    assert ends_at > 2_524_608_000


@pytest.mark.parametrize("text", ["", "x", HEAD, f"{HEAD}AAAA\n{TAIL}", f"{HEAD}!\n{TAIL}"])
def test_what_is_no_certificate_has_no_date(text: str) -> None:
    assert expires_at(text) is None


@given(st.binary(max_size=64))
def test_no_bytes_are_too_odd(der: bytes) -> None:
    assert expires_at(ssl.DER_cert_to_PEM_cert(der)) is None or len(der) > 16
