"""The loop beside copies from and to the host."""

from protocol.messages import BlocksSnapshot, Load, Snapshot
from tests.fakes.page_copies import PageCopies
from tests.workers.loop.test_loop import BOUND_S, A, Bed, CountingRunner, cached_of, running
from workers.ipc.messages import ClearCache, Cleared, SleepEngine, Slept, WakeEngine, Woken


def test_an_idle_engine_says_that_its_cache_is_cleared() -> None:
    """Metrics and status had what it held before, until the next request."""
    copies = PageCopies()
    copies.opened.put(range(8))
    with running(CountingRunner(), copies=copies) as end:
        assert cached_of(end, A) == 0
        held = 0
        while not held:
            load = end.until(Load)
            assert isinstance(load, Load)
            assert load.cache is not None
            held = load.cache.held_bytes
        end.control(ClearCache())
        end.until(Cleared)
        loads = [message for _, message in end.heard if isinstance(message, Load)]
        assert loads[-1].cache is not None
        assert loads[-1].cache.held_bytes == 0


def test_nothing_is_copied_from_memory_that_is_asleep() -> None:
    """Pages of the host that open meanwhile are used behind the wake: on a card the engine died of
    a store of blocks whose memory was not there.
    """
    copies, runner = PageCopies(), CountingRunner()
    with running(runner, sleep=Bed(), copies=copies) as end:
        assert cached_of(end, A) == 0
        end.control(SleepEngine("native sleep"))
        end.until(Slept)
        copies.opened.put(range(8))
        for _ in range(3):
            end.send(1, Snapshot())
            end.until(BlocksSnapshot)
        assert copies.begun.empty()
        end.control(WakeEngine(4))
        end.until(Woken)
        assert copies.begun.get(timeout=BOUND_S).copies
