"""Who is told of events may change between two of them."""

from gateway.core.audience import Audience
from gateway.core.events import Finished, TextDelta, TurnEvent

TEXT = TextDelta(0, "a")
END = Finished(0, "stop")


def test_it_tells_whoever_listens_now() -> None:
    """Called, or asked for `tell`, it reaches the one that was set last."""
    first: list[TurnEvent] = []
    second: list[TurnEvent] = []
    audience = Audience(first.append)
    audience(TEXT)
    audience.tell = second.append
    audience(END)
    audience.tell(TEXT)
    assert (first, second) == ([TEXT], [END, TEXT])


def test_an_audience_stays_the_one_it_is() -> None:
    """Who holds on to it hears of a change; a function becomes an audience of its own."""
    heard: list[TurnEvent] = []
    audience = Audience(heard.append)
    assert Audience.of(audience) is audience
    Audience.of(heard.append).tell(TEXT)
    assert heard == [TEXT]
