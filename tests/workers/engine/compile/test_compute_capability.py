"""The card's capability, asked of the driver: a small one that the test compiles."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from workers.engine.compile import compute_capability as card
from workers.engine.compile.compute_capability import compute_capability

DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int number) {
    if (number > 1) return 101;
    *device = 40 + number;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 40) return 1;
    *value = attribute == 75 ? device - 31 : attribute == 76 ? 3 : -1;
    return 0;
}
"""


@pytest.fixture(name="driver")
def _driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(card, "LIBRARY", str(library))


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("device", "expected"),
    [("auto", 93), ("cuda", 93), ("cuda:0", 93), ("cuda:1", 103), ("cuda:2", None), ("cpu", None)],
)
def test_the_capability_of_a_device(device: str, expected: int | None) -> None:
    """Two cards of other generations; no third one."""
    assert compute_capability(device) == expected


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no card, which is no error."""
    monkeypatch.setattr(card, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(OSError, match="cannot open"):
        ctypes.CDLL(card.LIBRARY)
    assert compute_capability("auto") is None
