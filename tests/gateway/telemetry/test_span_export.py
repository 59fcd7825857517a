"""The queue of spans before a collector, in virtual time: bounds, tries, losses."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from gateway.telemetry import GatewayCounters, RequestSpan, RequestTrace, SpanExport
from gateway.telemetry.span_export import LAST_S, MAX_BATCH, MAX_WAITING, RETRY_S

FOR_EVER = 10**6


class Collector:
    """Refuses so often, then takes; `hangs`: answers nothing at all."""

    def __init__(self, refusals: int = 0, *, hangs: bool = False) -> None:
        self.refusals = refusals
        self.hangs = hangs
        self.num_tries = 0
        self.batches: list[list[str]] = []

    async def send(self, spans: Sequence[RequestSpan]) -> bool:
        self.num_tries += 1
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            return False
        self.batches.append([str(span.attributes["gen_ai.response.id"]) for span in spans])
        return True

    @property
    def names(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


@asynccontextmanager
async def exporting(collector: Collector, counters: GatewayCounters) -> AsyncIterator[SpanExport]:
    export = SpanExport(collector.send, counters)
    async with trio.open_nursery() as nursery:
        await nursery.start(export.run)
        yield export
        nursery.cancel_scope.cancel()


def add(export: SpanExport, first: int, count: int) -> list[str]:
    names = [f"r{number}" for number in range(first, first + count)]
    for name in names:
        export.add(RequestTrace(id=name, ended_at=1.0))
    return names


async def test_each_span_is_sent_once_and_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Although the collector fails at first; those that come meanwhile wait."""
    collector, counters = Collector(3), GatewayCounters()
    async with exporting(collector, counters) as export:
        names = add(export, 0, 5)
        await trio.sleep(4)
        names += add(export, 5, MAX_BATCH + 1)
        await trio.sleep(30)
        assert collector.names == names
        assert max(map(len, collector.batches)) == MAX_BATCH
    assert (counters.spans_sent, counters.spans_lost) == (len(names), 0)


async def test_what_does_not_fit_is_counted_as_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A dead collector costs bounded memory, and loses batch after batch; the rest arrives."""
    collector, counters = Collector(FOR_EVER), GatewayCounters()
    async with exporting(collector, counters) as export:
        add(export, 0, MAX_WAITING + 7)
        assert counters.spans_lost == 7
        await trio.sleep(sum(RETRY_S) + 5)
        assert counters.spans_lost == 7 + MAX_BATCH
        assert collector.num_tries >= len(RETRY_S)
        collector.refusals = 0
        await trio.sleep(sum(RETRY_S) + 60)
    assert counters.spans_lost == 7 + MAX_BATCH
    assert counters.spans_sent == MAX_WAITING - MAX_BATCH == len(collector.names)


async def test_the_end_sends_what_is_left(autojump_clock: trio.testing.MockClock) -> None:
    """The end of the gateway sends the spans that are left, also the batch that was being tried."""
    collector, counters = Collector(1), GatewayCounters()
    async with exporting(collector, counters) as export:
        names = add(export, 0, 3)
        await trio.sleep(1.5)
        names += add(export, 3, 2)
    assert collector.names == names
    assert (counters.spans_sent, counters.spans_lost) == (5, 0)


async def test_the_end_does_not_wait_for_a_collector_that_hangs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The end does not wait for a collector that hangs: its spans are lost, and counted."""
    collector, counters = Collector(hangs=True), GatewayCounters()
    async with exporting(collector, counters) as export:
        add(export, 0, 3)
        ended_at = trio.current_time()
    assert trio.current_time() == ended_at + LAST_S
    assert (counters.spans_sent, counters.spans_lost) == (0, 3)
