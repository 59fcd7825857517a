"""A load of a long prefix goes part by part: the books of each turn stay short, and true."""

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

from tests.fakes.scheduling import Engine, make_submit
from workers.scheduler.tier import EntryKind, Transfer
from workers.scheduler.tier.entry import TierEntry

PART = 4
LONG = 1000


def _engine(num_blocks: int = 48, **shape: int) -> Engine:
    """Blocks of four tokens; a part of a load has four blocks."""
    room = {"context_length": 4 * num_blocks, "token_budget": 4 * num_blocks, "host_pages": 80}
    return Engine(num_blocks=num_blocks, copies=True, **{**room, **shape})


def _ask(engine: Engine, number: int, prompt: list[int]) -> None:
    """A prompt to its end, and until the host has it."""
    engine.submit(make_submit(number, prompt, max_tokens=1))
    while number not in engine.ledger.finished or engine.scheduler.is_copying:
        engine.step()


def _prompt(num_blocks: int, first: int = 100) -> list[int]:
    return [first + index for index in range(4 * num_blocks + 1)]


def _parked(num_blocks: int, **shape: int) -> tuple[Engine, list[int]]:
    """An engine that has a prompt of so many full blocks on the host alone."""
    engine, prompt = _engine(**shape), _prompt(num_blocks)
    _ask(engine, 1, prompt)
    engine.scheduler.blocks.clear_card()
    return engine, prompt


def _held(engine: Engine, depth: int) -> TierEntry:
    """The entry of that depth on the host."""
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    entries = [tier.pool.get(name) for name in tier.pool.names]
    (found,) = [one for one in entries if one is not None and one.depth == depth]
    assert found.name.kind is EntryKind.BLOCK
    return found


def test_each_part_is_entered_when_it_has_come() -> None:
    """Each part is entered when it has come, so no turn enters more than the parts that are under
    way at once.
    """
    engine, prompt = _parked(30)
    engine.submit(make_submit(2, prompt, max_tokens=1))
    counts = [0]
    while 2 not in engine.ledger.accepted:
        engine.step()
        counts.append(len(engine.scheduler.blocks._by_digest))
    rises = [after - before for before, after in pairwise(counts)]
    assert engine.ledger.accepted[2].cached_tokens == 120
    assert max(rises) <= 2 * PART
    assert len([rise for rise in rises if rise > 0]) >= 30 // (2 * PART)


def test_what_is_spoilt_in_a_later_part_ends_the_load_there() -> None:
    """What came before it is used, and the rest is computed."""
    engine, prompt = _parked(30)
    engine.runner.host[_held(engine, 14).pages[0]][0] = (0, 0)
    engine.submit(make_submit(2, prompt, max_tokens=1))
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 13 * 4
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    assert tier.num_spoilt == 1
    assert engine.scheduler.blocks.promised == 0


def test_what_is_evicted_before_its_part_ends_the_load_there() -> None:
    engine, prompt = _parked(30)
    engine.submit(make_submit(2, prompt, max_tokens=1))
    engine.step()
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    for gone in tier.pool.evict(_held(engine, 21)):
        tier._forgot(gone)
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 20 * 4
    assert engine.scheduler.blocks.promised == 0


def test_blocks_of_later_parts_are_kept_for_them() -> None:
    """A prompt that would need them waits, as if they were taken."""
    engine, prompt = _parked(30)
    engine.submit(make_submit(2, prompt, max_tokens=4))
    engine.step()
    blocks = engine.scheduler.blocks
    assert blocks.num_free <= 48 - 30
    assert blocks.promised >= 30 - 2 * PART
    engine.submit(make_submit(3, _prompt(25, 500), max_tokens=1))
    while 2 not in engine.ledger.accepted:
        engine.step()
        assert 3 not in engine.ledger.accepted
    assert engine.ledger.accepted[2].cached_tokens == 120
    engine.drain()
    assert engine.ledger.accepted[3].cached_tokens == 0


def test_two_prompts_with_one_prefix_wait_for_one_load() -> None:
    """Wherever the load is, and each block crosses the bus once."""
    engine, prompt = _parked(30)
    engine.submit(make_submit(2, prompt, max_tokens=1))
    engine.step()
    engine.step()
    engine.submit(make_submit(3, [*prompt[:100], 9, 9, 9], max_tokens=1))
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 120
    assert engine.ledger.accepted[3].cached_tokens == 100
    assert engine.runner.num_loaded == 30


def test_no_turn_has_the_work_of_the_whole_load() -> None:
    """No turn has the work of the whole load of a thousand blocks, because answers that run wait
    for the books of a turn. All at once took 30 calls for each block in one turn.
    """
    shape = {"num_blocks": LONG + 40, "host_pages": LONG + 40}
    engine = _engine(**shape)
    engine.check = lambda: None  # type: ignore[method-assign]
    prompt = _prompt(LONG)
    _ask(engine, 1, prompt)
    engine.scheduler.blocks.clear_card()
    engine.submit(make_submit(2, prompt, max_tokens=1))
    calls: list[int] = []
    begun: list[Transfer] = []

    def turn() -> None:
        engine.scheduler.transferred(engine.runner.take_done(), 0.0)
        if engine.scheduler.plan() is None:
            begun.extend(engine.scheduler.transfers())

    while not calls or begun:
        begun.clear()
        calls.append(_calls(turn))
        for transfer in begun:
            engine.runner.begin(transfer)
    assert engine.runner.num_loaded == LONG
    assert sum(calls) > 30 * LONG
    assert max(calls) < 9 * LONG


def _calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def _close(engine: Engine) -> list[int]:
    """Close all pages, as a new engine finds them; returns those that hold something."""
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    pool = tier.pool
    held = [page for name in pool.names if (one := pool.get(name)) for page in one.pages]
    pool._is_open = [False] * pool.num_pages
    pool._num_open = 0
    pool._free.clear()
    pool.expect(held)
    return held


def test_a_prefix_is_waited_for_while_its_pages_open() -> None:
    """A prefix is waited for while its pages are opened, and others go on meanwhile; it is not
    computed again, and not loaded piece by piece.
    """
    engine, prompt = _parked(30)
    held = _close(engine)
    engine.submit(make_submit(2, prompt, max_tokens=1))
    engine.submit(make_submit(3, [7, 8, 9], max_tokens=4))
    for page in held:
        engine.scheduler.blocks.tier.open(range(page, page + 1))
        engine.step()
        assert 2 not in engine.ledger.accepted
    assert 3 in engine.ledger.finished
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 120


def test_what_will_not_open_is_computed() -> None:
    """The driver may lock no more memory: then nobody waits for the rest."""
    engine, prompt = _parked(30)
    held = _close(engine)
    for page in held[:11]:
        engine.scheduler.blocks.tier.open(range(page, page + 1))
    engine.submit(make_submit(2, prompt, max_tokens=1))
    engine.step()
    assert engine.scheduler.is_copying
    engine.scheduler.blocks.tier.open(range(0))
    tier = engine.scheduler.blocks.tier
    assert tier is not None
    assert len(tier.pool) == tier.pool.num_usable == 11
    engine.ledger.hear(engine.scheduler.take_events())
    assert len(engine.ledger.on_host) == 11, "what cannot come back is told to nobody"
    engine.drain()
    assert engine.ledger.accepted[2].cached_tokens == 11 * 4
    for _ in range(40):
        engine.step()
    assert not engine.scheduler.is_copying
    assert tier.pool.num_used <= 11
