"""No secret in any log: what processes of the tests write, and what the tests' own process logs.

Each child process copies its output to a file (`tests/fakes/copied_output`), and after each test
what is new there is searched for what looks like an API key, as all secrets of the tests do, and
for the secret half of each CURVE pair that was made. The test that was running fails.
"""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.transport import curve

HERE: Final = Path(__file__).parent
API_KEY: Final = re.compile(rb"(?<![A-Za-z])sk-[a-z][\w-]{2,}|s3cret")
"""`task-local` is none."""
SHOWN_CHARS: Final = 80


class SecretsInLogs(logging.Handler):
    """`folder` gets the copies of this process's children."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._read: dict[str, int] = {}
        self._secrets: set[bytes] = set()
        self._logged: list[bytes] = []

    def install(self) -> None:
        """Watch all that starts from now on."""
        self._folder.mkdir()
        os.environ["HERMA_COPIED_OUTPUT"] = str(self._folder)
        paths = [str(HERE / "fakes/copied_output"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        logging.getLogger().addHandler(self)
        make_pair = curve.make_pair

        def remembered() -> curve.CurvePair:
            pair = make_pair()
            self._secrets.add(pair.secret.encode())
            return pair

        curve.make_pair = remembered

    def emit(self, record: logging.LogRecord) -> None:
        """A record of this process, with its traceback."""
        self._logged.append(self.format(record).encode())

    def caught(self) -> list[str]:
        """Secrets in what is new since the last call, each with what stands around it."""
        logged, self._logged = self._logged, []
        return [one for text in (*logged, *self._written()) for one in self._in(text)]

    def _written(self) -> Iterator[bytes]:
        with os.scandir(self._folder) as files:
            for file in files:
                begin = self._read.get(file.name, 0)
                if file.stat().st_size > begin:
                    with Path(file.path).open("rb") as copy:
                        copy.seek(begin)
                        # A line that is being written is read when it is whole.
                        text, newline, _ = copy.read().rpartition(b"\n")
                    self._read[file.name] = begin + len(text) + len(newline)
                    yield text

    def _in(self, text: bytes) -> Iterator[str]:
        places = [match.span() for match in API_KEY.finditer(text)]
        places += [(at, at + len(one)) for one in self._secrets if (at := text.find(one)) >= 0]
        for begin, end in places:
            around = text[max(0, begin - SHOWN_CHARS) : end + SHOWN_CHARS]
            yield around.decode(errors="replace")
