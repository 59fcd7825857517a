"""A card that does not exist: an `nvidia-smi` that says what the engines of a test hold of it.

Each engine's process holds what `awake` names for its worker. The program finds the processes of
this card by a variable of their environment, so that tests beside this one do not meet.
"""

import json
import os
import sys
from pathlib import Path

VARIABLE = "HERMA_TEST_CARD"

_PROGRAM = """#!{python} -ISE
import json, os, sys
from pathlib import Path
folder = {folder!r}
said = json.loads(Path(folder, "card.json").read_text())
def engines():
    for one in Path("/proc").iterdir():
        if not one.name.isdigit():
            continue
        try:
            title = one.joinpath("cmdline").read_bytes().replace(b"\\0", b" ").decode().strip()
            if not title.startswith("herma engine "):
                continue
            if b"{variable}=" + folder.encode() not in one.joinpath("environ").read_bytes():
                continue
        except OSError:
            continue
        name = title.removeprefix("herma engine ")
        asleep = Path(folder, "asleep-" + one.name).exists()
        yield int(one.name), name, said["asleep" if asleep else "awake"].get(name, 0)
what = next(word for word in sys.argv if word.startswith("--query-"))
used = said["others"] + sum(mib for _, _, mib in engines())
if what == "--query-gpu=memory.total,memory.used":
    print(said["total"], used, sep=", ")
elif what == "--query-gpu=memory.used":
    print(used)
elif what == "--query-gpu=utilization.gpu":
    print(0)
elif "process_name" in what:
    for pid, name, mib in engines():
        print(pid, name, mib, sep=", ")
else:
    for pid, _, _ in engines():
        print(pid)
"""


class TurningCard:
    """A card of `total` MiB. `awake` and `asleep` are MiB by worker."""

    def __init__(
        self, folder: Path, total: int, awake: dict[str, int], asleep: dict[str, int] | None = None
    ) -> None:
        self.folder = folder
        self._said = {"total": total, "others": 0, "awake": awake, "asleep": asleep or {}}
        folder.mkdir(parents=True)
        program = folder / "nvidia-smi"
        program.write_text(
            _PROGRAM.format(python=sys.executable, folder=str(folder), variable=VARIABLE)
        )
        program.chmod(0o755)
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        """For the processes that are to see it. Their titles must not overwrite it."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return {"PATH": path, VARIABLE: str(self.folder), "SPT_NOENV": "1"}

    def needs(self, worker: str, mib: int) -> None:
        """The engine of this worker holds so much awake from now on."""
        self._said["awake"][worker] = mib
        self._write()

    def take(self, mib: int) -> None:
        """Other processes hold this much of the card from now on."""
        self._said["others"] = mib
        self._write()

    def _write(self) -> None:
        new = self.folder / "card.new"
        new.write_text(json.dumps(self._said))
        new.replace(self.folder / "card.json")
