"""One line per cause, for as long as a trouble lasts; and a log goes on behind a full disk."""

import io
import threading

from workers.supervisor.log import FORGET_S, LogDeduper, WorkerLog


class _FullDisk(io.StringIO):
    """Takes nothing until `is_free`; `refused` is set with the first line."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = False
        self.refused = threading.Event()

    def write(self, text: str) -> int:
        if not self.is_free:
            self.refused.set()
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_log_goes_on_once_the_disk_has_room() -> None:
    """A log goes on once the disk has room, and says how many lines are missing."""
    disk = _FullDisk()
    log = WorkerLog("w", disk)
    log.info("lost")
    assert disk.refused.wait(30)
    disk.is_free = True
    log.info("one")
    log.info("two")
    log.close()
    assert [line.rpartition(": ")[2] for line in disk.getvalue().splitlines()][-2:] == [
        "one",
        "two",
    ]
    assert "lost" not in disk.getvalue()


def test_causes_that_take_turns_are_told_once_each() -> None:
    """However long they do."""
    causes = LogDeduper()
    met = [(("a", "b")[i % 2], 0.2 * i) for i in range(1000)]
    assert [cause for cause, now in met if causes.is_news(cause, now)] == ["a", "b"]


def test_a_cause_that_comes_back_is_news() -> None:
    """A cause that comes back is news, when the trouble was over in between, or was another one for
    long.
    """
    causes = LogDeduper()
    assert causes.is_news("a", 0.0)
    causes.clear()
    assert causes.is_news("a", 0.1)
    assert causes.is_news("b", 0.2)
    assert causes.is_news("a", FORGET_S + 0.2)


def test_the_longest_unmet_cause_is_forgotten_first() -> None:
    """What is remembered has a bound, whatever a gateway makes up."""
    causes = LogDeduper()
    assert all(causes.is_news(str(number), 0.0) for number in range(1000))
    assert not causes.is_news("999", 0.0)
    assert causes.is_news("0", 0.0)
