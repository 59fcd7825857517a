"""What of a card is this process's own, by a management library that the test compiles."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from workers.engine.memory.own_memory import own_bytes
from workers.engine.peak_probe import CardCount, growth

COMPILER = shutil.which("cc")
GIB = 2**30
CARD = "11111111-2222-3333-4444-555555555555"
OLD = "-DOLD"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs cc")

SOURCE = """
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int instance, compute;
} nvmlProcessInfo_t;
static int is_open;
static int said(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : 0;
}
int nvmlInit_v2(void) { is_open = 1; return said("FAULT_INIT"); }
int nvmlShutdown(void) { is_open = 0; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    *card = &is_open;
    return is_open && !strcmp(uuid, getenv("CARD")) ? 0 : 6;
}
#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(
    void *card, unsigned int *count, nvmlProcessInfo_t *rows) {
    if (card != &is_open || *count < 4) return 2;
    nvmlProcessInfo_t listed[] = {
        {1, 70ull << 30, ~0u, ~0u},
        {getpid(), 5ull << 30, ~0u, ~0u},
        {getpid(), said("UNKNOWN") ? ~0ull : 1ull << 30, ~0u, ~0u},
        {2, ~0ull, ~0u, ~0u},
    };
    if (said("OTHERS")) listed[1].pid = listed[2].pid = 3;
    memcpy(rows, listed, sizeof listed);
    *count = 4;
    return said("FAULT_LIST");
}
#endif
"""


@cache
def library(*flags: str) -> str:
    assert COMPILER is not None
    folder = Path(mkdtemp(prefix="herma-nvml-"))
    (folder / "nvml.c").write_text(SOURCE)
    found = str(folder / "libnvidia-ml.so.1")
    words = [COMPILER, "-shared", "-fPIC", *flags, "-o", found, str(folder / "nvml.c")]
    subprocess.run(words, check=True)
    return found


@pytest.fixture(name="namespace")
def _namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PID namespace of the host, wherever the test runs."""
    monkeypatch.setenv("CARD", f"GPU-{CARD}")
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    return link


@needs_compiler
def test_the_rows_of_this_process_are_summed(namespace: Path) -> None:
    """A process with two contexts has two; those of others are no part."""
    assert own_bytes(CARD, library(), namespace) == 6 * GIB


@needs_compiler
@pytest.mark.parametrize("name", ["FAULT_INIT", "FAULT_LIST", "UNKNOWN", "OTHERS"])
def test_what_the_driver_does_not_say_is_unknown(
    name: str, namespace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors, a figure that is not there, and a list without this process."""
    monkeypatch.setenv(name, "1")
    assert own_bytes(CARD, library(), namespace) is None


@needs_compiler
def test_another_card_or_an_older_library_is_unknown(namespace: Path) -> None:
    assert own_bytes("0" * 36, library(), namespace) is None
    assert own_bytes(CARD, library(OLD), namespace) is None
    assert own_bytes(CARD, "libnothing-ml.so", namespace) is None


@needs_compiler
def test_a_number_of_another_namespace_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of another namespace is not believed: in a container the list has the host's
    numbers, and ours means another process there.
    """
    inner = tmp_path / "pid"
    inner.symlink_to("pid:[4026532999]")
    monkeypatch.setenv("CARD", f"GPU-{CARD}")
    assert own_bytes(CARD, library(), inner) is None
    assert own_bytes(CARD, library(), tmp_path / "none") is None


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        ((10, 4), (17, 5), (1, 6)),
        ((10, 4), (11, 5), (1, 0)),
        ((10, 4), (8, 5), (1, 0)),  # others have freed some
        ((10, 5), (14, 4), (0, 5)),
        ((10, None), (17, 5), (7, None)),
        ((10, 4), (17, None), (7, None)),
        ((10, None), (8, None), (0, None)),
    ],
)
def test_what_others_take_meanwhile_is_not_the_step_s(
    before: tuple[int, int | None],
    after: tuple[int, int | None],
    grown: tuple[int, int | None],
) -> None:
    """Three engines that started beside a step made it 6 GiB larger."""
    assert growth(CardCount(*before), CardCount(*after)) == grown
