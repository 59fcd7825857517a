"""A card of fixed figures, for a supervisor in the process of a test."""

from pathlib import Path

from workers.supervisor.card_memory import CardUse

GIB = 2**30


class FixedCard:
    """In the place of `CardMemory`: 80 GiB, of which an engine holds 60 awake, and 1 while the file
    `asleep` is in `folder`.
    """

    key = "card"
    is_card = True
    can_read = True

    def __init__(self, folder: Path) -> None:
        self._mark = folder / "asleep"
        self.others = 0

    @property
    def is_out(self) -> bool:
        return self._mark.exists()

    async def read(self) -> CardUse:
        return CardUse(80 * GIB, self.others + GIB * self.is_out)

    async def held_by(self, pid: int) -> int:  # noqa: ARG002
        return GIB if self.is_out else 60 * GIB
