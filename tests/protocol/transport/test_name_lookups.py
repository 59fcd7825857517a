"""Lookups of host names: one that hangs holds up no other name, and not its own for long."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from protocol.transport.name_lookups import AGAIN_S, MAX_AT_ONCE, NameLookups
from tests.fakes.running_gateway import wait_until


class Resolver:
    """A resolver whose threads answer when told to, in any order."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, threading.Event]] = []
        self.answers: dict[threading.Event, Any] = {}

    def __call__(self, host: bytes, *_: object) -> list[Any]:
        told = threading.Event()
        self.asked.append((host, told))
        told.wait()
        answer = self.answers.get(told)
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    def tell(self, at: int, answer: Any) -> None:
        """End the lookup of that number, by an address or an error."""
        told = self.asked[at][1]
        self.answers[told] = answer
        told.set()

    def end(self) -> None:
        for _, told in self.asked:
            told.set()


class Asked:
    """Requests for addresses, and what became of each."""

    def __init__(self, nursery: trio.Nursery, resolver: Resolver) -> None:
        self.now = 0.0
        self.lookups = NameLookups(resolver, lambda: self.now)
        self.results: list[Any] = []
        self._nursery = nursery

    def ask(self, host: bytes = b"far.example") -> None:
        self._nursery.start_soon(self._ask, host)

    async def _ask(self, host: bytes) -> None:
        try:
            self.results.append(await self.lookups.getaddrinfo(host, 443))
        except OSError as error:
            self.results.append(error)


async def run(story: Callable[[Asked, Resolver], Any]) -> None:
    resolver = Resolver()
    try:
        async with trio.open_nursery() as nursery:
            await story(Asked(nursery, resolver), resolver)
            nursery.cancel_scope.cancel()
    finally:
        resolver.end()


async def test_requests_for_one_name_share_a_lookup() -> None:
    """However many they are; a later one asks anew."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        for _ in range(100):
            asked.ask()
        await trio.testing.wait_all_tasks_blocked()
        await wait_until(lambda: len(resolver.asked) == 1)
        resolver.tell(0, "1.2.3.4")
        await wait_until(lambda: len(asked.results) == 100)
        assert asked.results == [["1.2.3.4"]] * 100
        asked.ask()
        await wait_until(lambda: len(resolver.asked) == 2)
        resolver.tell(1, "5.6.7.8")
        await wait_until(lambda: asked.results[-1] == ["5.6.7.8"])
        assert repr(asked.lookups) == "<NameLookups of 0 names in 0 threads>"

    await run(story)


async def test_a_name_that_hangs_holds_up_no_other() -> None:
    """A name whose lookup hangs delays no other name, and takes none of trio's own threads."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        for number in range(60):
            asked.ask(b"far%d.example" % number)
        await wait_until(lambda: len(resolver.asked) == 60)
        with trio.fail_after(60):
            assert await trio.to_thread.run_sync(lambda: 7) == 7
        asked.ask(b"near.example")
        await wait_until(lambda: len(resolver.asked) == 61)
        resolver.tell(60, "1.2.3.4")
        await wait_until(lambda: asked.results == [["1.2.3.4"]])

    await run(story)


async def test_a_resolver_that_is_back_is_found() -> None:
    """A request asks anew beside a lookup that hangs, which then gets the answer too; the threads
    of one name are few.
    """

    async def story(asked: Asked, resolver: Resolver) -> None:
        async def asked_at_least(count: int) -> None:
            await wait_until(lambda: len(resolver.asked) >= count)

        for number in range(MAX_AT_ONCE + 3):
            asked.ask()
            await trio.testing.wait_all_tasks_blocked()
            await asked_at_least(min(number + 1, MAX_AT_ONCE))
            asked.now += AGAIN_S
        assert len(resolver.asked) == MAX_AT_ONCE
        resolver.tell(1, socket.gaierror(-3, "try again"))
        resolver.tell(2, "1.2.3.4")
        await wait_until(lambda: len(asked.results) == MAX_AT_ONCE + 3)
        assert asked.results == [["1.2.3.4"]] * (MAX_AT_ONCE + 3)

    await run(story)


async def test_a_name_that_is_not_found_is_an_error_for_each() -> None:
    """Each lookup of a name that is not found gets an error of its own."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        asked.ask()
        asked.ask()
        await trio.testing.wait_all_tasks_blocked()
        await wait_until(lambda: len(resolver.asked) == 1)
        resolver.tell(0, socket.gaierror(-2, "name not known"))
        await wait_until(lambda: len(asked.results) == 2)
        one, other = asked.results
        assert one is not other
        assert [(type(e), e.args) for e in (one, other)] == [
            (socket.gaierror, (-2, "name not known"))
        ] * 2

    await run(story)


async def test_a_name_that_is_none_ends_no_other_task() -> None:
    """The resolver of Python raises other errors for a label of 64 letters."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        asked.ask()
        await wait_until(lambda: len(resolver.asked) == 1)
        resolver.tell(0, UnicodeError("label too long"))
        await wait_until(lambda: len(asked.results) == 1)
        assert isinstance(asked.results[0], socket.gaierror)
        assert "label too long" in str(asked.results[0])

    await run(story)


async def test_a_lack_of_threads_is_over_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that meets it fails at once, and the next one is as if it had not been."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        def no_thread(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", no_thread)
            asked.ask()
            await wait_until(lambda: len(asked.results) == 1)
        assert "can't start new thread" in str(asked.results[0])
        asked.ask()
        await wait_until(lambda: len(resolver.asked) == 1)
        resolver.tell(0, socket.gaierror(-2, "name not known"))
        await wait_until(lambda: len(asked.results) == 2)
        assert repr(asked.lookups) == "<NameLookups of 0 names in 0 threads>"

    await run(story)


async def test_who_leaves_takes_no_lookup_along() -> None:
    """The others get the answer; a run that is over needs none."""

    async def story(asked: Asked, resolver: Resolver) -> None:
        with trio.move_on_after(0.01):
            await asked.lookups.getaddrinfo(b"far.example", 443)
        asked.ask()
        await trio.testing.wait_all_tasks_blocked()
        await wait_until(lambda: len(resolver.asked) == 1)
        resolver.tell(0, "1.2.3.4")
        await wait_until(lambda: asked.results == [["1.2.3.4"]])

    await run(story)
