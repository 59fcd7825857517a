"""A runner whose card is late and remembers what is in every slot of its cache.

Each slot holds a hash of the whole prefix of tokens that was computed there. Steps are done only
when they are collected, in the order of their launch, and every position that attention would
read is checked first: it must hold the keys and values of that sequence's own tokens. So must the
recurrent state that a chunk begins with, if the model has any, and what layers with a window read,
which lies in blocks of their own. Drafts are accepted as `sample`
says, and a chunk that may move begins behind them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from msgspec.structs import replace

from protocol.ids import BlockDigest
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import NO_SLOT, Chunk, Sampled, SequenceMoves, StepPlan, StepResult
from workers.scheduler.tier import Copy, Transfer, Transferred
from workers.scheduler.windows import WindowPool, first_kept

Sample = Callable[[int], tuple[int, ...]]
Failing = Callable[[int], bool]

_SEED = 0


class FakeRunner:
    """Keeps tokens and cache as a real runner would; `sample` maps a sequence to new ids.

    `tokens` are those on the card by sequence, `known` the sequences that have state on the host.
    Where there are `drafts` blocks may be held ahead.
    """

    def __init__(
        self,
        block_size: int,
        *,
        has_states: bool = False,
        drafts: bool = False,
        windows: WindowPool | None = None,
    ) -> None:
        self.block_size = block_size
        self._windows = windows
        self._seen: dict[tuple[int, int], int] = {}
        self.drafts = drafts
        self.num_restored = 0
        self._has_states = has_states
        self._states: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self.host: dict[int, list[int | None]] = {}
        self.num_swapped = 0
        self.num_loaded = self.num_stored = 0
        self._done: list[Transferred] = []
        self.known: set[int] = set()
        self.tokens: dict[int, list[int]] = {}
        self.seq_of: dict[int, int] = {}
        self.num_computed = 0
        self._max_tokens: dict[int, int] = {}
        self._launched: deque[StepPlan | Transfer] = deque()
        self._slots: dict[tuple[int, int], int] = {}
        self._broken: set[int] = set()
        self._num_accepted: dict[int, int] = {}
        self.num_moved = 0
        self._poison = count(-1, -1)

    def launch(self, plan: StepPlan) -> None:
        """Queue a step. A sequence that has ended is never named again."""
        assert self.known.issuperset(plan.ended)
        self.known.difference_update(plan.ended)
        for start in plan.started:
            assert start.seq not in self.known
            self.known.add(start.seq)
            self.seq_of[start.seed] = start.seq
        named = [chunk.seq for chunk in plan.chunks]
        assert len(set(named)) == len(named)
        assert self.known.issuperset(named)
        self._launched.append(plan)

    def collect(self, sample: Sample, failing: Failing = lambda _: False) -> StepResult:
        """Do the oldest queued step: check what it relies on, compute it, and check that nothing
        was overwritten. A sequence that failed has no tokens to go on with: its later chunks write
        rubbish, as a card would.
        """
        self._copy_ahead()
        plan = self._launched.popleft()
        assert isinstance(plan, StepPlan)
        self._move(plan.moves)
        self._change_state(plan)
        chunks = [self._moved(chunk) for chunk in plan.chunks]
        failed = {chunk.seq for chunk in chunks if failing(chunk.seq)}
        self._broken |= failed
        sound = [chunk for chunk in chunks if chunk.seq not in self._broken]
        for chunk in sound:
            self._check(chunk, chunk.start)
        for chunk in chunks:
            self._compute(chunk)
        for chunk in sound:
            self._check(chunk, chunk.start + chunk.length)
        sampled = [self._sample(chunk, sample) for chunk in chunks if chunk.samples]
        for chunk in sound:
            if chunk.drafts:
                self._check_drafts(chunk)
        answers = tuple(item for item in sampled if item.seq not in failed)
        return StepResult(plan.step, answers, tuple((seq, "no memory") for seq in failed))

    def begin(self, transfer: Transfer) -> None:
        """Queue copies behind the steps that are launched."""
        self._launched.append(transfer)

    def take_done(self) -> list[Transferred]:
        """The copies before which no step is queued."""
        self._copy_ahead()
        done, self._done = self._done, []
        return done

    def _copy_ahead(self) -> None:
        while self._launched and isinstance(transfer := self._launched[0], Transfer):
            self._launched.popleft()
            sums = [self._copy(copy, is_load=transfer.is_load) for copy in transfer.copies]
            self._done.append(Transferred(transfer.number, tuple(sums)))

    def _copy(self, copy: Copy, *, is_load: bool) -> tuple[int, ...]:
        (page,) = copy.pages
        places = [(copy.place, at) for at in range(self.block_size)]
        if is_load:
            self.num_loaded += 1
            held = self.host[page]
            if copy.is_state:
                assert held[0] is not None
                self._kept[copy.place] = held[0]
            else:
                self._slots.update(zip(places, held, strict=True))  # type: ignore[arg-type]
        else:
            self.num_stored += 1
            here = [self._kept[copy.place]] if copy.is_state else None
            self.host[page] = here or [self._slots[place] for place in places]
        return (hash(tuple(self.host[page])),)

    def check_cache(self, blocks: BlockManager) -> None:
        """Every block that can be found by its content must have it, whoever wrote there last."""
        prefixes: dict[int | BlockDigest, int] = {}

        def prefix_after(block_id: int | BlockDigest) -> int:
            if not isinstance(block_id, int):
                return _SEED
            if block_id not in prefixes:
                cached = blocks._cached[block_id]
                assert cached is not None
                expected = _prefixes(
                    prefix_after(cached.parent), list(memoryview(cached.packed_ids).cast("I"))
                )
                slots = [self._slots.get((block_id, at)) for at in range(self.block_size)]
                assert slots == expected, f"cached block {block_id} was overwritten"
                prefixes[block_id] = expected[-1]
            return prefixes[block_id]

        for block_id in blocks._by_digest.values():
            prefix_after(block_id)
        if self._windows is not None:
            self._check_snapshots(blocks, self._windows)
        else:
            for digest, found in blocks.states.pool._snapshots.items():
                if found.is_saved:
                    assert self._kept[found.slot] == prefix_after(blocks._by_digest[digest])

    def _check_snapshots(self, blocks: BlockManager, windows: WindowPool) -> None:
        """Each snapshot keeps the window blocks that its prefix has computed."""
        for digest, found in blocks.states.pool._snapshots.items():
            at = blocks._by_digest.get(digest) if found.is_saved else None
            kept = windows._kept[found.slot][::-1]
            for block_id in kept if at is not None else ():
                assert isinstance(at, int)
                for offset in range(self.block_size):
                    assert self._seen[block_id, offset] == self._slots[at, offset]
                cached = blocks._cached[at]
                assert cached is not None
                at = cached.parent

    def _move(self, moves: SequenceMoves) -> None:
        """Out of the card first: what comes back may have gone in the same plan."""
        offsets = range(self.block_size)
        for move in moves.out:
            for block, page in zip(move.block_ids, move.pages, strict=True):
                self.host[page] = [self._slots.get((block, at)) for at in offsets]
            for page in move.state_pages:
                self.host[page] = [self._states[move.seq]]
        for move in moves.back:
            self.num_swapped += 1
            for block, page in zip(move.block_ids, move.pages, strict=True):
                self._slots.update(
                    ((block, at), held)
                    for at, held in zip(offsets, self.host[page], strict=True)
                    if held is not None
                )
            for page in move.state_pages:
                (held,) = self.host[page]
                assert held is not None
                self._states[move.seq] = held

    def _change_state(self, plan: StepPlan) -> None:
        for seq in plan.ended:
            del self.tokens[seq]
            self._broken.discard(seq)
        for start in plan.started:
            self.tokens[start.seq] = list(start.token_ids)
            self._max_tokens[start.seq] = start.num_prompt + start.sampling.max_tokens

    def _moved(self, chunk: Chunk) -> Chunk:
        if not chunk.may_move:
            return chunk
        step = self._num_accepted[chunk.seq]
        assert step <= chunk.may_move
        self.num_moved += step > 0
        return replace(chunk, start=chunk.start + step)

    def _sample(self, chunk: Chunk, sample: Sample) -> Sampled:
        tokens = self.tokens[chunk.seq]
        if chunk.seq not in self._broken:
            assert chunk.start + chunk.length == len(tokens)
            is_wanted = len(tokens) + len(chunk.drafts) < self._max_tokens[chunk.seq]
            assert is_wanted or chunk.may_move, "no sequence takes that token"
        ids = sample(chunk.seq)
        if self.drafts:
            ids = ids[: 1 + len(chunk.drafts)]
        self._num_accepted[chunk.seq] = len(ids) - 1 if chunk.drafts else 0
        end = chunk.start + chunk.length
        for position in range(end, end + len(chunk.drafts)):
            self._write(chunk, position, next(self._poison))
        tokens += ids
        return Sampled(chunk.seq, ids)

    def _check_drafts(self, chunk: Chunk) -> None:
        """Rejected drafts hold their own poison, accepted ones their own keys and values."""
        end, prefixes = chunk.start + chunk.length, _prefixes(_SEED, self.tokens[chunk.seq])
        for position in range(end, end + len(chunk.drafts)):
            assert (self._slots[self._slot(chunk, position)] or 0) < 0, (chunk, position)
        for position in range(end, end + self._num_accepted[chunk.seq]):
            self._write(chunk, position, prefixes[position])

    def _write(self, chunk: Chunk, position: int, held: int) -> None:
        self._slots[self._slot(chunk, position)] = held
        if self._windows is not None:
            self._seen[self._window_slot(chunk, position)] = held

    def _window_slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.window_ids[position // self.block_size], position % self.block_size

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.block_ids[position // self.block_size], position % self.block_size

    def _check(self, chunk: Chunk, end: int) -> None:
        tokens = self.tokens[chunk.seq]
        assert chunk.samples == (chunk.start + chunk.length == len(tokens)), (chunk, len(tokens))
        for position, prefix in enumerate(_prefixes(_SEED, tokens[:end])):
            assert self._slots.get(self._slot(chunk, position)) == prefix, (chunk, position)
            if self._windows is not None and position >= self._first_seen(chunk):
                assert self._seen.get(self._window_slot(chunk, position)) == prefix, (
                    chunk,
                    position,
                )

    def _first_seen(self, chunk: Chunk) -> int:
        assert self._windows is not None
        return first_kept(chunk.start, self._windows.window, self._windows._grain)

    def _compute(self, chunk: Chunk) -> None:
        end = chunk.start + chunk.length
        assert chunk.length > 0
        last = end + len(chunk.drafts) + chunk.num_to_draft
        assert len(chunk.block_ids) * self.block_size >= last
        if not self.drafts:
            assert len(chunk.block_ids) == -(-end // self.block_size)
        if chunk.seq in self._broken:
            for position in range(chunk.start, end):
                self._write(chunk, position, next(self._poison))
            self._states[chunk.seq] = next(self._poison)
            self._kept.update((slot, next(self._poison)) for _, slot in chunk.saves)
            return
        prefixes = _prefixes(_SEED, self.tokens[chunk.seq][:end])
        if self._has_states:
            before = prefixes[chunk.start - 1] if chunk.start else _SEED
            assert self._state_ahead(chunk) == before, chunk
        elif chunk.restores != NO_SLOT:
            assert chunk.start > 0
            self.num_restored += 1
        for position in range(chunk.start, end):
            self._write(chunk, position, prefixes[position])
        self._states[chunk.seq] = prefixes[-1]
        self._kept.update((slot, prefixes[position - 1]) for position, slot in chunk.saves)
        assert all(position >= chunk.start for position, _ in chunk.saves)
        self.num_computed += chunk.length

    def _state_ahead(self, chunk: Chunk) -> int:
        if chunk.restores != NO_SLOT:
            assert chunk.start > 0
            self.num_restored += 1
            return self._kept[chunk.restores]
        return self._states[chunk.seq] if chunk.start else _SEED


def _prefixes(prefix: int, token_ids: Sequence[int]) -> list[int]:
    """A hash after each token of all tokens so far; never negative."""
    prefixes = [prefix]
    for token_id in token_ids:
        prefixes.append(hash((prefixes[-1], token_id)) & (2**62 - 1))
    return prefixes[1:]
