"""The guess: whole prefixes within the engine's room, corrected by what answers report."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored
from protocol.tokens import pack_tokens
from tests.fakes.vllm_engine import split
from workers.external.approximate import KEPT_S, ApproximateBlocks

BLOCK = 4


def _prompt(*parts: tuple[int, int]) -> list[BlockDigest]:
    """Digests of a prompt of (name, blocks) parts."""
    tokens = [name for name, num_blocks in parts for _ in range(num_blocks * BLOCK)]
    return block_digests(root_digest("m"), pack_tokens(tokens), BLOCK)


def _guess(capacity_blocks: int = 100, kept_s: float = KEPT_S) -> ApproximateBlocks:
    return ApproximateBlocks(
        block_size=BLOCK, capacity_blocks=capacity_blocks, slack_blocks=1, kept_s=kept_s
    )


def _held(guess: ApproximateBlocks) -> set[BlockDigest]:
    return set(split(guess.snapshot().digests))


def _serve(
    guess: ApproximateBlocks, prompt: list[BlockDigest], cached: int | None, now: float
) -> None:
    expected = guess.sent(prompt, now - 0.5)
    guess.answered(prompt, expected, None if cached is None else cached * BLOCK, now)


def test_a_prompt_counts_once_it_was_computed() -> None:
    """A prompt counts once it was computed, and not when it is sent: the gateway knows by itself
    what is on its way.
    """
    guess, prompt = _guess(), _prompt((1, 3))
    expected = guess.sent(prompt, 0.0)
    assert (expected.num_blocks, guess.take()) == (0, ())
    guess.answered(prompt, expected, None, 1.0)
    (message,) = guess.take()
    assert isinstance(message, BlocksStored)
    assert set(split(message.digests)) == set(prompt)
    assert guess.sent(_prompt((1, 2), (2, 2)), 2.0).num_blocks == 2


def test_the_least_recently_used_leaves_from_its_tail() -> None:
    """A shared head stays as long as anybody uses it."""
    guess = _guess(capacity_blocks=10)
    _serve(guess, _prompt((1, 4), (2, 3)), None, 1.0)
    _serve(guess, _prompt((1, 4), (3, 3)), None, 2.0)
    assert _held(guess) == {*_prompt((1, 4), (3, 3)), *_prompt((1, 4), (2, 2))}
    guess.take()
    _serve(guess, _prompt((4, 30)), None, 3.0)
    assert _held(guess) == set(_prompt((4, 9)))


def test_nobody_asked_for_it_long_enough() -> None:
    """Expired from the tail of the oldest on."""
    guess = _guess(kept_s=10.0)
    _serve(guess, _prompt((1, 2), (2, 2)), None, 0.0)
    _serve(guess, _prompt((1, 2), (3, 2)), None, 6.0)
    guess.expire(10.0)
    assert len(guess) == 6
    guess.expire(10.1)
    assert _held(guess) == set(_prompt((1, 2), (3, 2)))
    assert guess.sent(_prompt((1, 2)), 16.1).num_blocks == 0


def test_a_miss_shows_how_much_the_engine_keeps() -> None:
    """What was used after the missed block is all that there was room for."""
    guess = _guess()
    for name in range(8):
        _serve(guess, _prompt((name, 10)), None, float(name))
    _serve(guess, _prompt((5, 10)), 0, 9.0)
    assert guess._room == 20
    assert _held(guess) == {*_prompt((5, 10)), *_prompt((7, 10))}


def test_a_miss_within_the_slack_means_nothing() -> None:
    """Engines never find the last block of a prompt."""
    guess = _guess()
    for now in range(3):
        _serve(guess, _prompt((1, 10)), 9 if now else 0, float(now))
    assert guess._room == 90


def test_a_surprise_gives_room_back_up_to_the_capacity() -> None:
    """The engine had blocks that we had written off."""
    guess = _guess()
    for name in range(8):
        _serve(guess, _prompt((name, 10)), None, float(name))
    _serve(guess, _prompt((7, 10)), 0, 9.0)
    assert guess._room == 5
    _serve(guess, _prompt((6, 10)), 10, 10.0)
    assert guess._room == 15
    _serve(guess, _prompt((8, 400)), 400, 11.0)
    assert guess._room == 90


def test_a_miss_of_a_block_that_came_back_meanwhile_is_no_proof() -> None:
    """Two requests beside each other: the first brought the blocks, their age is lost."""
    guess, prompt = _guess(), _prompt((1, 10))
    for name in (1, 2, 3):
        _serve(guess, _prompt((name, 10)), None, float(name))
    first, second = guess.sent(prompt, 4.0), guess.sent(prompt, 4.0)
    guess.answered(prompt, first, 0, 5.0)
    assert guess._room == 20
    guess.answered(prompt, second, 0, 6.0)
    assert guess._room == 18
    assert _held(guess) >= set(prompt)


def test_blocks_that_we_dropped_ourselves_are_not_missed() -> None:
    """Blocks that we dropped ourselves are not missed: while the request waited, others filled the
    room, so the guess was right.
    """
    guess = _guess(capacity_blocks=20)
    _serve(guess, _prompt((1, 10)), None, 1.0)
    expected = guess.sent(_prompt((1, 10)), 2.0)
    _serve(guess, _prompt((2, 18)), None, 3.0)
    guess.answered(_prompt((1, 10)), expected, 0, 4.0)
    assert guess._room == 18


def test_a_new_engine_is_empty_and_trusted_again() -> None:
    """One empty snapshot, the full room."""
    guess = _guess()
    _serve(guess, _prompt((1, 10)), None, 1.0)
    _serve(guess, _prompt((1, 10)), 0, 2.0)
    guess.clear()
    (message,) = guess.take()
    assert isinstance(message, BlocksSnapshot)
    assert (message.digests, guess._room) == (b"", 90)


_requests = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=3),
        st.none() | st.integers(0, 20),
        st.floats(0, 20),
    ),
    max_size=25,
)


@given(_requests, st.integers(1, 30))
def test_whatever_is_reported_it_stays_whole_prefixes_within_the_room(
    requests: list[tuple[list[tuple[int, int]], int | None, float]], capacity_blocks: int
) -> None:
    """Bounded, without holes, and the messages add up to what is held."""
    guess = _guess(capacity_blocks, kept_s=30.0)
    parents: dict[BlockDigest, BlockDigest] = {}
    told = set[BlockDigest]()
    now = 0.0
    for parts, cached, pause_s in requests:
        prompt = _prompt(*parts)
        parents.update(zip(prompt[1:], prompt, strict=False))
        now += pause_s + 1.0
        _serve(guess, prompt, cached, now)
        for message in guess.take():
            assert isinstance(message, BlocksStored | BlocksDropped)
            digests = split(message.digests)
            if isinstance(message, BlocksStored):
                assert told.isdisjoint(digests)
                told.update(digests)
            else:
                assert told.issuperset(digests)
                told.difference_update(digests)
        assert told == _held(guess)
        assert len(told) <= guess._room <= max(1, capacity_blocks)
        assert all(parents[digest] in told for digest in told if digest in parents)


class _LruEngine:
    """An engine with less room than its operator thinks; it reports what it found."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._used: OrderedDict[BlockDigest, None] = OrderedDict()

    def serve(self, prompt: list[BlockDigest]) -> int:
        """How many leading blocks were found."""
        found = 0
        while found < len(prompt) and prompt[found] in self._used:
            found += 1
        for digest in reversed(prompt):
            self._used[digest] = None
            self._used.move_to_end(digest)
        while len(self._used) > self._room:
            self._used.popitem(last=False)
        return found


def test_the_guess_finds_the_room_that_an_engine_really_has() -> None:
    """Twelve conversations grow in turns; operator says 900 blocks, the engine keeps 300. After a
    round the guess is off by far less than without the reports.
    """
    errors = {}
    for reports in (True, False):
        guess, engine, off = _guess(1000), _LruEngine(300), 0
        for turn in range(1, 9):
            for name in range(12):
                prompt = _prompt((99, 10), (name, 10 * turn))
                now = turn * 100.0 + name
                expected = guess.sent(prompt, now)
                found = engine.serve(prompt)
                off += abs(found - expected.num_blocks)
                guess.answered(prompt, expected, found * BLOCK if reports else None, now + 0.5)
        errors[reports] = off
    assert errors[True] < errors[False] / 4
