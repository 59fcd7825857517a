"""The overviews of several processes as one."""

import functools

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from gateway.dashboard import Overview, merged
from gateway.dashboard.overview import MAX_RECENT, MAX_REQUESTS
from tests.fakes.shown_fleet import ShownFleet

SUMS = ("open", "queued", "ended", "failed", "by_cloud", "prompt_tokens", "output_tokens")


@functools.cache
def overview_of(seed: int) -> Overview:
    overview = ShownFleet(seed=seed).past(60).dashboard().overview({})
    return msgspec.structs.replace(overview, replaced=seed)


@given(seeds=st.lists(st.integers(1, 3), max_size=4))
def test_what_each_counts_is_added_up(seeds: list[int]) -> None:
    """Rows are bounded as those of one; nothing is counted twice."""
    every = [overview_of(0), *map(overview_of, seeds)]
    one = merged(every[0], every[1:])
    assert one.processes == len(every)
    assert one.replaced == sum(each.replaced for each in every)
    for name in SUMS:
        assert getattr(one.totals, name) == sum(getattr(each.totals, name) for each in every)
    num_requests = sum(len(each.requests) for each in every)
    assert len(one.requests) == min(MAX_REQUESTS, num_requests)
    assert len(one.recent) == min(MAX_RECENT, sum(len(each.recent) for each in every))
    ages = [row.age_s for row in one.requests]
    assert ages == sorted(ages, reverse=True)
    ends = [row.unix_time + row.age_s for row in one.recent]
    assert not seeds or ends == sorted(ends, reverse=True)
    spent = sum(row.spent for each in every for row in each.providers)
    assert sum(row.spent for row in one.providers) == spent
    cached = sum(row.cached_tokens for each in every for row in each.clients)
    assert sum(row.cached_tokens for row in one.clients) == cached
    assert one.limits == every[0].limits
    assert one.savings == every[0].savings


def test_a_worker_s_speed_is_what_all_get_from_it() -> None:
    """Its state is as the process that is looked at sees it."""
    own, other = overview_of(0), overview_of(1)
    one = merged(own, [other])
    for row, mine, theirs in zip(one.workers, own.workers, other.workers, strict=True):
        assert row.name == mine.name == theirs.name
        assert row.tokens_per_s == round(mine.tokens_per_s + theirs.tokens_per_s, 1)
        assert row.state == mine.state


def test_the_worst_condition_is_shown() -> None:
    """A process that has lost its link to all workers sees more than the others."""
    own = overview_of(0)
    lost = msgspec.structs.replace(overview_of(1), condition="down", words="No worker serves m.")
    assert merged(own, [lost]).words == "No worker serves m."
    assert merged(lost, [own]).condition == "down"


def test_alone_nothing_changes() -> None:
    assert merged(overview_of(0), []) is overview_of(0)
