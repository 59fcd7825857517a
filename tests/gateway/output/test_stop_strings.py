"""Stop strings across every split."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.output.stop_strings import StopMatcher

TEXT = st.text("abc", max_size=14)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    """The text before the stop that is completed first, the longest of those."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(TEXT, STOPS)
def test_every_split_agrees_with_the_whole_text(text: str, stops: list[str]) -> None:
    """Wherever a text is split, what is shown and what matched are the same."""
    expected = naive(stops, text)
    for cut in range(len(text) + 1):
        matcher = StopMatcher(stops)
        first, second = matcher.push(text[:cut]), matcher.push(text[cut:])
        shown = first + second + matcher.flush()
        assert (shown, matcher.matched) == expected


@given(TEXT, STOPS)
def test_nothing_is_shown_that_could_become_a_stop(text: str, stops: list[str]) -> None:
    """After each character, exactly the longest possible start of a stop is held back."""
    matcher = StopMatcher(stops)
    shown = ""
    for at, char in enumerate(text, 1):
        shown += matcher.push(char)
        if matcher.matched is not None:
            return
        heads = (stop[:k] for stop in stops for k in range(1, len(stop)))
        held = max((len(head) for head in heads if text[:at].endswith(head)), default=0)
        assert shown == text[: at - held]


def test_after_a_match_nothing_more_comes() -> None:
    """Text behind a stop string is never shown."""
    matcher = StopMatcher(["END"])
    assert (matcher.push("one E"), matcher.matched) == ("one ", None)
    assert (matcher.push("ND two"), matcher.matched) == ("", "END")
    assert (matcher.push("three"), matcher.matched) == ("", "END")
    assert matcher.flush() == ""
