"""Who is told of events may change between two of them."""

from gateway.api.events import Finished, TextDelta, TurnEvent
from gateway.output.event_sink import EventSink

TEXT = TextDelta(0, "a")
END = Finished(0, "stop")


def test_it_tells_whoever_listens_now() -> None:
    """Called, or asked for `tell`, it reaches the one that was set last."""
    first: list[TurnEvent] = []
    second: list[TurnEvent] = []
    audience = EventSink(first.append)
    audience(TEXT)
    audience.tell = second.append
    audience(END)
    audience.tell(TEXT)
    assert (first, second) == ([TEXT], [END, TEXT])


def test_an_audience_stays_the_one_it_is() -> None:
    """Who holds on to it hears of a change; a function becomes an audience of its own."""
    heard: list[TurnEvent] = []
    audience = EventSink(heard.append)
    assert EventSink.of(audience) is audience
    EventSink.of(heard.append).tell(TEXT)
    assert heard == [TEXT]
