"""When alerts leave: in order, once, not too many, and not at night."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.alerts.alert import Alert, Level
from gateway.alerts.pacing import LONGEST_PAUSE_S, MAX_WAITING, Pacing, QuietHours

NOON, NIGHT = 720, 1380
QUIET = QuietHours.parse("22:00-07:00")


def alert(number: int, level: Level = "warning") -> Alert:
    return Alert(f"run-{number}", "worker", level, f"title {number}", f"text {number}", b"{}")


def test_alerts_leave_one_by_one_in_order() -> None:
    pacing = Pacing(20)
    for number in range(3):
        pacing.put(alert(number))
    for number in range(3):
        assert pacing.due(0.0, NOON) == alert(number)
        pacing.delivered(0.0)
    assert pacing.due(0.0, NOON) is None
    assert pacing.wait_s(0.0, NOON) == math.inf


def test_a_failed_one_is_tried_again_before_the_next() -> None:
    """A failed alert is tried again before the next, after 1, 2, 4 seconds and so on, at most a
    minute.
    """
    pacing = Pacing(20)
    pacing.put(alert(0))
    pacing.put(alert(1))
    now, pauses = 0.0, []
    for _ in range(9):
        assert pacing.due(now, NOON) == alert(0)
        pacing.failed(now)
        assert pacing.due(now, NOON) is None
        pauses.append(pacing.wait_s(now, NOON))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_PAUSE_S] * 3]
    assert pacing.due(now, NOON) == alert(0)
    pacing.delivered(now)
    assert pacing.due(now, NOON) == alert(1)


def test_what_exceeds_the_rate_is_one_message_when_there_is_room() -> None:
    pacing = Pacing(2)
    for number in range(2):
        pacing.put(alert(number))
        assert pacing.due(number, NOON) == alert(number)
        pacing.delivered(number)
    for number in range(2, 7):
        pacing.put(alert(number, "critical" if number == 3 else "good"))
    assert pacing.due(100.0, NOON) is None
    assert pacing.wait_s(100.0, NOON) == 3500.0
    digest = pacing.due(3600.0, NOON)
    assert digest is not None
    assert (digest.title, digest.level) == ("5 alerts", "critical")
    assert [f"title {number}" in digest.text for number in range(2, 7)] == [True] * 5


def test_quiet_hours_let_only_what_is_critical_through() -> None:
    """The rest is one message in the morning."""
    pacing = Pacing(20, QUIET)
    for number, level in enumerate(("warning", "critical", "good")):
        pacing.put(alert(number, level))  # type: ignore[arg-type]
    assert pacing.due(0.0, NIGHT) == alert(1, "critical")
    pacing.delivered(0.0)
    assert pacing.due(0.0, NIGHT) is None
    assert 0 < pacing.wait_s(0.0, NIGHT) < 3600
    digest = pacing.due(1.0, NOON)
    assert digest is not None
    assert digest.title == "2 alerts"


def test_what_finds_no_room_is_counted() -> None:
    pacing = Pacing(1)
    for number in range(MAX_WAITING + 5):
        pacing.put(alert(number))
    digest = pacing.due(0.0, NOON)
    assert digest is not None
    assert digest.title == f"{MAX_WAITING + 5} alerts"
    assert digest.text.startswith("185 older ones are left out.")


@pytest.mark.parametrize(
    ("text", "quiet", "loud"),
    [("22:00-07:00", [1320, 0, 419], [420, 1319]), ("12:30-13:00", [750], [780])],
)
def test_quiet_hours_may_pass_midnight(text: str, quiet: list[int], loud: list[int]) -> None:
    hours = QuietHours.parse(text)
    assert all(hours.holds(minute) for minute in quiet)
    assert not any(hours.holds(minute) for minute in loud)
    with pytest.raises(ValueError, match="HH:MM"):
        QuietHours.parse(text + "x")


class Lives(RuleBasedStateMachine):
    """Every alert reaches the receiver once, in order of levels' rules, whatever fails."""

    def __init__(self) -> None:
        super().__init__()
        self.pacing = Pacing(3, QUIET)
        self.now, self.minute, self.put_count = 0.0, NOON, 0
        self.received: list[str] = []
        self.sent_s: list[float] = []

    @rule(level=st.sampled_from(["good", "warning", "critical"]))
    def happens(self, level: Level) -> None:
        if self.put_count < MAX_WAITING:
            self.pacing.put(alert(self.put_count, level))
            self.put_count += 1

    @rule(seconds=st.sampled_from([0.5, 30.0, 4000.0]), minute=st.sampled_from([NOON, NIGHT]))
    def passes(self, seconds: float, minute: int) -> None:
        self.now += seconds
        self.minute = minute

    @rule(works=st.booleans())
    def sends(self, works: bool) -> None:
        message = self.pacing.due(self.now, self.minute)
        if message is None:
            return
        if not works:
            self.pacing.failed(self.now)
            return
        self.pacing.delivered(self.now)
        self.sent_s.append(self.now)
        self.received += [word for word in message.text.splitlines() if "text" in word]

    @invariant()
    def never_twice(self) -> None:
        numbers = [line.rpartition(" ")[2] for line in self.received]
        assert len(set(numbers)) == len(numbers)

    @invariant()
    def never_too_many(self) -> None:
        assert sum(self.now - at < 3600 for at in self.sent_s) <= 3

    def teardown(self) -> None:
        for _ in range(self.put_count + 5):
            self.now += 4000
            if self.pacing.due(self.now, NOON) is not None:
                message = self.pacing.due(self.now, NOON)
                assert message is not None
                self.pacing.delivered(self.now)
                self.received += [word for word in message.text.splitlines() if "text" in word]
                hidden = message.text.partition(" older ones")[0]
                self.received += ["hidden"] * int(hidden) if hidden.isdigit() else []
        assert len(self.received) >= min(self.put_count, 20)
        assert self.pacing.wait_s(self.now, NOON) == math.inf


TestLives = Lives.TestCase
