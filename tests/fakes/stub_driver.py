"""A CUDA driver that does not exist: a shared library with the calls of the driver's checkpoint.

It keeps the states of processes in files of the folder `HERMA_TEST_CARD`, where a test finds
`calls` (a line for each) and may write `fault-NAME` (the result of the call of that name; "1 801"
for the second call alone; -11 crashes), `users` (the processes that use a card; without it all do),
`integrated` and `version`.
"""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

COMPILER = shutil.which("cc")

_SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[4096];
static const char *at(const char *name, int pid) {
    const char *folder = getenv("HERMA_TEST_CARD");
    if (pid) snprintf(path, sizeof path, "%s/%s-%d", folder, name, pid);
    else snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}
static int number(const char *name, int pid, int missing) {
    int found = missing;
    FILE *file = fopen(at(name, pid), "r");
    if (!file) return missing;
    if (fscanf(file, "%d", &found) != 1) found = missing;
    fclose(file);
    return found;
}
static void put(const char *name, int pid, int value) {
    FILE *file = fopen(at(name, pid), "w");
    fprintf(file, "%d", value);
    fclose(file);
}
static int parent(int pid) {
    char name[64], text[1024];
    int found = 0;
    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    FILE *file = fopen(name, "r");
    if (!file) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *end = strrchr(text, ')');
    if (end) sscanf(end + 1, " %*c %d", &found);
    return found;
}
static int result(int code) {
    if (code == -11) raise(SIGSEGV);
    return code;
}
static int fault(const char *call, int pid) {
    char name[64];
    int which = -1, code = 0;
    FILE *file = fopen(at("calls", 0), "a");
    fprintf(file, "%s %d\n", call, pid);
    fclose(file);
    snprintf(name, sizeof name, "fault-%s", call);
    file = fopen(at(name, 0), "r");
    if (!file) return 0;
    int count = fscanf(file, "%d %d", &which, &code);
    fclose(file);
    if (count == 1) return result(which);
    snprintf(name, sizeof name, "count-%s", call);
    int seen = number(name, 0, 0);
    put(name, 0, seen + 1);
    return seen == which ? code : 0;
}
static int uses_card(int pid) {
    int found = 0, any = 0;
    FILE *file = fopen(at("users", 0), "r");
    if (!file) return parent(pid) > 0;
    while (fscanf(file, "%d", &found) == 1) any = any || found == pid;
    fclose(file);
    return any;
}
int cuInit(unsigned int flags) { return fault("Init", 0); }
int cuDriverGetVersion(int *version) { *version = number("version", 0, 12080); return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 18 ? number("integrated", 0, 0) : 0;
    return 0;
}
#ifndef OLD
static int move(const char *call, int pid, int from, int to) {
    int code = fault(call, pid);
    if (code) return code;
    if (number("state", pid, 0) != from) return 401;
    put("state", pid, to);
    return 0;
}
static const char *mark(int pid) { return at("asleep", parent(pid)); }
int cuCheckpointProcessGetState(int pid, int *state) {
    int code = fault("State", pid);
    if (code) return code;
    if (!uses_card(pid)) return 1;
    *state = number("state", pid, 0);
    return 0;
}
int cuCheckpointProcessLock(int pid, unsigned int *arguments) {
    if (arguments[0] == 0) return 1; /* it must not wait for ever */
    return move("Lock", pid, 0, 1);
}
int cuCheckpointProcessCheckpoint(int pid, unsigned int *arguments) {
    int code = move("Checkpoint", pid, 1, 2);
    if (!code && !number("keeps", 0, 0)) fclose(fopen(mark(pid), "w"));
    return code;
}
int cuCheckpointProcessRestore(int pid, unsigned int *arguments) {
    int code = move("Restore", pid, 2, 1);
    if (!code) unlink(mark(pid));
    return code;
}
int cuCheckpointProcessUnlock(int pid, unsigned int *arguments) {
    return move("Unlock", pid, 1, 0);
}
#endif
"""


@cache
def driver_folder(*, is_old: bool = False) -> Path:
    """A folder with `libcuda.so.1`; one that `is_old` has no checkpoint. Needs `COMPILER`."""
    assert COMPILER is not None
    folder = Path(mkdtemp(prefix="herma-driver-"))
    source = folder / "driver.c"
    source.write_text(_SOURCE)
    old = ["-DOLD"] if is_old else []
    library = folder / "libcuda.so.1"
    command = [COMPILER, "-shared", "-fPIC", "-w", *old, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    source.unlink()
    return folder
