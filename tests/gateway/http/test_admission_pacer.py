"""A burst begins a few at a time, in order, and the loop turns in between."""

from itertools import pairwise

import trio
import trio.testing

from gateway.http.generation import PER_TURN, AdmissionPacer

COUNT = 10 * PER_TURN + 3


async def test_a_burst_does_not_hold_the_loop() -> None:
    """All come together, as from connections that became readable together; another task has its
    turn between any two handfuls.
    """
    admission_pacer = AdmissionPacer()
    num_passed = 0
    seen = [0]

    async def request() -> None:
        nonlocal num_passed
        await admission_pacer.enter()
        num_passed += 1

    async def other_stream() -> None:
        while num_passed < COUNT:
            await trio.lowlevel.checkpoint()
            seen.append(num_passed)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_stream)
        for _ in range(COUNT):
            nursery.start_soon(request)
    assert num_passed == COUNT
    # Of two turns the other task may run first in the one and last in the next.
    assert max(later - earlier for earlier, later in pairwise(seen)) <= 2 * PER_TURN


async def test_who_came_first_passes_first() -> None:
    """Up to the order within one turn of the loop, which is trio's."""
    admission_pacer = AdmissionPacer()
    passed: list[int] = []

    async def request(number: int) -> None:
        await admission_pacer.enter()
        passed.append(number)

    for _ in range(PER_TURN):
        await admission_pacer.enter()
    async with trio.open_nursery() as nursery:
        for number in range(COUNT):
            nursery.start_soon(request, number)
            await trio.lowlevel.checkpoint()
    assert sorted(passed) == list(range(COUNT))
    assert all(abs(place - number) < PER_TURN for place, number in enumerate(passed))


async def test_who_leaves_the_queue_holds_nobody_up() -> None:
    """Clients that are gone while they wait take no place."""
    admission_pacer = AdmissionPacer()
    for _ in range(PER_TURN):
        await admission_pacer.enter()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            scope.cancel()
            await admission_pacer.enter()
        assert scope.cancelled_caught
        for _ in range(COUNT):
            nursery.start_soon(admission_pacer.enter)


async def test_a_free_turnstile_is_no_pause() -> None:
    """A request that comes alone goes on in the same step of the loop."""
    admission_pacer = AdmissionPacer()
    with trio.testing.assert_no_checkpoints():
        await admission_pacer.enter()
