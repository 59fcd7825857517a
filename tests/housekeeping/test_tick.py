"""When periodic tasks wake, in virtual time."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from housekeeping.tick import coalesced_tick, next_tick

periods = st.sampled_from([0.1, 0.2, 0.4, 1.0])


@given(st.floats(0, 1e7), periods)
def test_a_beat_is_about_a_period_away(now: float, period_s: float) -> None:
    """Whenever one asks; and who keeps a beat, even a little late, has the next in a period."""
    first = next_tick(now, period_s)
    assert 0.249 * period_s <= first - now <= 1.251 * period_s
    second = next_tick(first + 0.1 * period_s, period_s)
    assert abs(second - first - period_s) < 1e-6


async def test_those_of_one_period_wake_together(autojump_clock: MockClock) -> None:
    """Whenever each began, and also those of a multiple of it."""
    woke_at: dict[str, list[float]] = {"first": [], "second": [], "slow": []}

    async def keep(name: str, period_s: float) -> None:
        while True:
            await coalesced_tick(period_s)
            woke_at[name].append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, "first", 0.25)
        await trio.sleep(0.09)
        nursery.start_soon(keep, "second", 0.25)
        await trio.sleep(0.13)
        nursery.start_soon(keep, "slow", 1.0)
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()
    assert len(woke_at["slow"]) >= 10
    assert set(woke_at["slow"]) <= set(woke_at["second"]) <= set(woke_at["first"])
    assert len(woke_at["first"]) - len(woke_at["second"]) <= 1
