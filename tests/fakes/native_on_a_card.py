"""`python tests/fakes/native_on_a_card.py FOLDER --fd N --name NAME ...`: a native engine on a
`TurningCard`.

It computes on the CPU, and its memory that can sleep is that of `ScarcePages`. While none of that
is taken there is a file `asleep-PID` beside the card.
"""

import json
import os
import sys
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from tests.fakes.scarce_pages import ScarcePages
from workers.engine import __main__ as engine
from workers.engine import start
from workers.engine.sleep import choice
from workers.engine.sleep.pages import NoMemoryError


@final
class TurningPages:
    """`Pages` of the card in `folder`, for the engine of the worker `name`."""

    granularity = ScarcePages.granularity

    def __init__(self, folder: Path, name: str) -> None:
        self._pages = ScarcePages()
        self._folder = folder
        self._name = name
        self._mark = folder / f"asleep-{os.getpid()}"

    def reserve(self, num_bytes: int) -> int:
        return self._pages.reserve(num_bytes)

    def take(self, address: int, num_bytes: int) -> None:
        said = json.loads((self._folder / "card.json").read_text())
        if said["others"] + said["awake"][self._name] > said["total"]:
            raise NoMemoryError("the card has no memory left")
        self._pages.take(address, num_bytes)
        self._mark.unlink(missing_ok=True)

    def give_back(self, address: int, num_bytes: int) -> None:
        self._pages.give_back(address, num_bytes)
        if not self._pages.taken:
            self._mark.touch()

    def let_stacks_go(self) -> None:
        self._pages.let_stacks_go()

    def take_stacks(self) -> None:
        self._pages.take_stacks()

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        return self._pages.bytes_at(address, num_bytes)


def main() -> int:
    folder, arguments = Path(sys.argv[1]), sys.argv[2:]
    pages = TurningPages(folder, arguments[arguments.index("--name") + 1])
    choice.pages_of = lambda _: pages
    choice.most_bytes_of = lambda _: 2**30
    start._device = lambda _: torch.device("cpu")
    engine.start_compiling = lambda _: None
    return engine.main(arguments)


if __name__ == "__main__":
    status = main()
    os._exit(status)
