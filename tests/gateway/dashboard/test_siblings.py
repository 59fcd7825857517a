"""The overviews of several processes as one."""

import functools
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
import trio
from hypothesis import given

from gateway.dashboard import Overview, Siblings, merged
from gateway.dashboard.overview import MAX_RECENT, MAX_REQUESTS
from housekeeping.process_files import Owner, this_process
from protocol.control_messages import GATEWAY_SOCKET, Shown, encode_line
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
    """The speed of a worker is the sum over all processes; its state is that of the process that
    serves the page.
    """
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


def _set_mode(folder: Path, *, mode: int) -> None:
    folder.chmod(mode)


async def _answer_all(listener: trio.SocketListener, line: bytes) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(line)

    await trio.serve_listeners(answer, [listener])


async def test_a_sibling_of_another_version_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overview of a sibling of another version has other fields, so the dashboard shows this
    process alone.
    """
    _set_mode(tmp_path, mode=0o700)
    monkeypatch.setenv("HERMA_RUNTIME_DIR", str(tmp_path))
    here = this_process()
    path = tmp_path / Owner(here.namespace, here.pid + 1, 1).name(GATEWAY_SOCKET)
    with trio.socket.socket(trio.socket.AF_UNIX) as sock:
        await sock.bind(str(path))
        sock.listen()
        async with trio.open_nursery() as nursery:
            line = encode_line(Shown(msgspec.Raw(b'{"of_another_version": 1}')))
            nursery.start_soon(_answer_all, trio.SocketListener(sock), line)
            siblings = Siblings("http://127.0.0.1:1")
            await siblings.look()
            nursery.cancel_scope.cancel()
    assert siblings.seen == ()


async def test_without_a_folder_for_sockets_there_are_no_siblings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that other users may write to is not used for sockets; the dashboard works without
    siblings.
    """
    _set_mode(tmp_path, mode=0o777)
    monkeypatch.setenv("HERMA_RUNTIME_DIR", str(tmp_path))
    siblings = Siblings("http://127.0.0.1:1")
    await siblings.look()
    assert siblings.seen == ()
    assert await siblings.explain("resp_1") is None
