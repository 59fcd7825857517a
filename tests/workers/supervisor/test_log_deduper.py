"""One line per cause, for as long as a trouble lasts."""

from workers.supervisor.log import FORGET_S, LogDeduper


def test_causes_that_take_turns_are_told_once_each() -> None:
    """However long they do."""
    causes = LogDeduper()
    met = [(("a", "b")[i % 2], 0.2 * i) for i in range(1000)]
    assert [cause for cause, now in met if causes.is_news(cause, now)] == ["a", "b"]


def test_a_cause_that_comes_back_is_news() -> None:
    """When the trouble was over in between, or was another one for long."""
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
