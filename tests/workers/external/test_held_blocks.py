"""Their blocks in our digests: whatever the block sizes, exactly what is in reach."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.hashing import block_digests, root_digest
from protocol.ids import ID_BYTES, BlockDigest
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored
from protocol.tokens import pack_tokens
from tests.fakes.vllm_engine import MODEL, VllmEngine, split
from workers.external.held_blocks import CopyReports, HeldBlocks, model_roots
from workers.external.vllm_events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch

TOKENS = list(range(1000, 1096))


def _held(
    block_size: int = 32, max_blocks: int = 1000, copies: CopyReports = CopyReports.COUNTED
) -> HeldBlocks:
    return HeldBlocks(
        model_roots(MODEL), block_size=block_size, max_blocks=max_blocks, copies=copies
    )


def _stored(
    names: Sequence[int], parent: int | None, tokens: list[int], **fields: Any
) -> BlockStored:
    size = len(tokens) // len(names)
    return BlockStored(tuple(names), parent, tokens, size, **fields)


def _digests(tokens: Sequence[int], adapter: str = "", salt: bytes = b"") -> set[BlockDigest]:
    return set(block_digests(root_digest(MODEL, adapter, salt), pack_tokens(tokens), 32))


def _snapshot(held: HeldBlocks) -> set[BlockDigest]:
    return set(split(held.snapshot().digests))


def test_two_blocks_of_16_are_one_of_32() -> None:
    """The first half promises nothing; the second completes the digest."""
    held = _held()
    held.apply(_stored([1], None, TOKENS[:16]))
    assert held.take() == ()
    held.apply(_stored([2, 3], 1, TOKENS[16:48]))
    (message,) = held.take()
    assert isinstance(message, BlocksStored)
    assert (message.seq, set(split(message.digests))) == (1, _digests(TOKENS[:32]))
    held.apply(BlockRemoved((2,)))
    assert held.take() == (BlocksDropped(2, message.digests),)


def test_one_block_of_96_is_three_of_32() -> None:
    """All come and go together."""
    held = _held()
    held.apply(_stored([1], None, TOKENS))
    assert _snapshot(held) == _digests(TOKENS)
    (stored,) = held.take()
    held.apply(BlockRemoved((1,)))
    (dropped,) = held.take()
    assert split(dropped.digests) == split(stored.digests)[::-1]
    assert _snapshot(held) == set()


def test_what_hangs_on_a_removed_block_is_out_of_reach_until_it_is_back() -> None:
    """The engine finds prefixes only; so the index may not have holes. Nothing is told twice."""
    held = _held()
    held.apply(_stored([1, 2, 3], None, TOKENS))
    held.apply(_stored([4], 1, TOKENS[:32]))
    fork = _digests(TOKENS[:32] + TOKENS[:32])
    assert _snapshot(held) == _digests(TOKENS) | fork
    held.take()
    held.apply(BlockRemoved((1,)))
    (dropped,) = held.take()
    assert isinstance(dropped, BlocksDropped)
    assert set(split(dropped.digests)) == _digests(TOKENS) | fork
    assert split(dropped.digests)[-1] in _digests(TOKENS[:32])
    held.apply(_stored([1], None, TOKENS[:32]))
    (stored,) = held.take()
    assert isinstance(stored, BlocksStored)
    assert set(split(stored.digests)) == _digests(TOKENS) | fork
    assert split(stored.digests)[0] in _digests(TOKENS[:32])


def test_blocks_whose_beginning_is_unknown_wait_for_it() -> None:
    """Blocks whose beginning is unknown after a gap wait for it: their tokens alone say nothing.
    With the beginning they are placed.
    """
    held = _held()
    held.apply(_stored([3], 2, TOKENS[64:]))
    held.apply(_stored([2], 1, TOKENS[32:64]))
    assert held.take() == ()
    held.apply(_stored([1], None, TOKENS[:32]))
    assert _snapshot(held) == _digests(TOKENS)


def test_a_block_behind_one_out_of_reach_waits_too() -> None:
    """A block behind one that is out of reach waits too: its place is known, but the engine would
    not find it.
    """
    held = _held()
    held.apply(_stored([1, 2], None, TOKENS[:64]))
    held.apply(BlockRemoved((1,)))
    held.apply(_stored([3], 2, TOKENS[64:]))
    assert _snapshot(held) == set()
    held.apply(_stored([1], None, TOKENS[:32]))
    assert _snapshot(held) == _digests(TOKENS)


def test_copies_are_counted_where_each_is_told() -> None:
    """The first removal of a block held twice changes nothing, the second does."""
    held = _held()
    for _ in range(2):
        held.apply(_stored([1], None, TOKENS[:32]))
    held.apply(BlockRemoved((1,)))
    assert _snapshot(held) == _digests(TOKENS[:32])
    held.apply(BlockRemoved((1,)))
    assert _snapshot(held) == set()


def test_without_copies_removed_means_gone() -> None:
    """An engine that repeats what it stored has it once."""
    held = _held(copies=CopyReports.SINGLE)
    for _ in range(2):
        held.apply(_stored([1], None, TOKENS[:32]))
    held.apply(BlockRemoved((1,)))
    assert _snapshot(held) == set()


def test_a_cleared_cache_is_one_empty_snapshot() -> None:
    """A cleared cache is one empty snapshot, in place of events that were not taken yet, with a
    number that follows theirs.
    """
    held = _held()
    held.apply(_stored([1], None, TOKENS[:32]))
    held.take()
    held.apply(BlockRemoved((1,)))
    held.apply(AllBlocksCleared())
    assert held.take() == (BlocksSnapshot(2, b""),)
    held.apply(_stored([1], None, TOKENS[:32]))
    (message,) = held.take()
    assert isinstance(message, BlocksStored)
    assert message.seq == 3


LEFT_OUT: list[tuple[str, dict[str, Any]]] = [
    ("medium", {"medium": "CPU"}),
    ("medium", {"locality": "REMOTE"}),
    ("group", {"group_idx": 1, "kv_cache_spec_kind": "mamba"}),
    ("group", {"kv_cache_spec_kind": "sliding_window"}),
    ("adapter", {"lora_id": 4}),
    ("keys", {"extra_keys": (("picture",), None)}),
    ("keys", {"extra_keys": ((("picture", 3),), None)}),
]


@pytest.mark.parametrize(("reason", "fields"), LEFT_OUT)
def test_what_our_digests_cannot_tell_is_left_out_and_counted(
    reason: str, fields: dict[str, Any]
) -> None:
    """What our digests cannot name is left out and counted: other media, windows of the prefix,
    nameless adapters, pictures.
    """
    held = _held()
    held.apply(_stored([1, 2], None, TOKENS[:64], **fields))
    assert held.take() == ()
    assert held.left_out == {reason: 2}
    assert len(held) == 0


def test_tokens_that_do_not_add_up_are_left_out() -> None:
    """Tokens that do not add up are left out, because it is unknown which of them belong to which
    block.
    """
    held = _held()
    held.apply(BlockStored((1,), None, TOKENS[:64], 32))
    assert (held.take(), held.left_out) == ((), {"tokens": 1})


def test_a_removal_elsewhere_does_not_touch_the_gpu() -> None:
    """The copy in host memory goes, the one that counts stays; likewise another group's."""
    held = _held()
    held.apply(_stored([1], None, TOKENS[:32], group_idx=2, kv_cache_spec_kind="full_attention"))
    held.apply(BlockRemoved((1,), "CPU", 2))
    held.apply(BlockRemoved((1,), "GPU", 0))
    assert _snapshot(held) == _digests(TOKENS[:32])
    held.apply(BlockRemoved((1,), "gpu", 2))
    assert _snapshot(held) == set()


def test_a_new_engine_may_count_its_groups_anew() -> None:
    """A new engine may count its groups anew: the group that stands for all is forgotten with the
    rest.
    """
    held = _held()
    held.apply(_stored([1], None, TOKENS[:32], group_idx=2))
    held.clear()
    held.apply(_stored([1], None, TOKENS[:32], group_idx=0))
    assert _snapshot(held) == _digests(TOKENS[:32])


def test_blocks_before_a_picture_are_told() -> None:
    """Blocks before a picture are reported: only from the first block with a foreign key on are
    they another content.
    """
    held = _held()
    keys = (None, ("picture",), None)
    held.apply(_stored([1, 2, 3], None, TOKENS, extra_keys=keys))
    assert _snapshot(held) == _digests(TOKENS[:32])
    assert held.left_out == {"keys": 2}


def test_adapters_and_salts_have_roots_of_their_own() -> None:
    """Same tokens, three caches. A salt travels as hexadecimal digits."""
    held = _held()
    held.apply(_stored([1], None, TOKENS[:32]))
    held.apply(_stored([2], None, TOKENS[:32], lora_name="sql", extra_keys=(("sql",),)))
    held.apply(_stored([3], None, TOKENS[:32], extra_keys=(("beef",),)))
    salted = _digests(TOKENS[:32], "", bytes.fromhex("beef"))
    assert _snapshot(held) == _digests(TOKENS[:32]) | _digests(TOKENS[:32], "sql") | salted


def test_a_block_of_ours_held_under_two_names_is_told_once() -> None:
    """Old engines do not tell salts: it is dropped with the last of the two."""
    held = _held()
    held.apply(_stored([1], None, TOKENS[:32]))
    held.apply(_stored([2], None, TOKENS[:32]))
    held.apply(BlockRemoved((1,)))
    (message,) = held.take()
    assert len(message.digests) == ID_BYTES
    held.apply(BlockRemoved((2,)))
    (message,) = held.take()
    assert isinstance(message, BlocksDropped)


def test_more_blocks_than_an_engine_has_are_a_fresh_start() -> None:
    """Memory is bounded: somebody's removals were lost, so nothing that was told is sure."""
    held = _held(max_blocks=10)
    for name in range(25):
        held.apply(_stored([name], None, [name] * 32))
        assert len(held) <= 10
    assert held.left_out == {"overflow": 2}
    assert _snapshot(held) == set().union(*(_digests([name] * 32) for name in range(20, 25)))


def test_a_removal_right_behind_a_fresh_start_counts() -> None:
    """A removal right behind a fresh start counts, because it is about the same cache, and a block
    that is gone must not be promised.
    """
    held = _held(max_blocks=1)
    held.apply(_stored([1], None, [1] * 32))
    held.apply(_stored([2], None, [2] * 32))
    held.apply(BlockRemoved((2,)))
    assert (len(held), _snapshot(held)) == (0, set())
    assert held.left_out == {"overflow": 1}


def test_nonsense_relations_harm_nobody() -> None:
    """Blocks that are their own parent, circles, removals of strangers."""
    held = _held()
    held.apply(_stored([1], 1, TOKENS[:32]))
    held.apply(_stored([2], 3, TOKENS[:32]))
    held.apply(_stored([3], 2, TOKENS[:32]))
    held.apply(BlockRemoved((1, 1, 2, 9)))
    held.apply(_stored([3], None, TOKENS[:32]))
    held.apply(_stored([4, 4], None, TOKENS[:64]))
    held.apply(BlockRemoved((3, 3, 4)))
    assert _snapshot(held) == _digests(TOKENS[:32])
    held.apply(BlockRemoved((4,)))
    assert (len(held), _snapshot(held)) == (0, set())
    assert not held._children


def test_a_chain_of_thousands_leaves_and_returns() -> None:
    """A long prompt's first block goes: no recursion."""
    held = _held(max_blocks=10_000)
    prompt = list(range(80_000))
    held.apply(_stored(range(5_000), None, prompt))
    held.apply(BlockRemoved((0,)))
    assert _snapshot(held) == set()
    held.apply(_stored([0], None, prompt[:16]))
    assert _snapshot(held) == _digests(prompt)


_prompts = st.builds(
    lambda parts, size: [part for part in parts for _ in range(size)],
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.sampled_from([5, 8, 16]),
)


class ExactlyWhatIsInReach(RuleBasedStateMachine):
    """Whatever an engine does, our digests are those of its model, and the messages add up."""

    @initialize(
        theirs=st.sampled_from([1, 3, 8, 16, 40]),
        ours=st.sampled_from([8, 16, 12]),
        as_maps=st.booleans(),
        as_bytes=st.booleans(),
    )
    def begin(self, theirs: int, ours: int, as_maps: bool, as_bytes: bool) -> None:
        """An engine starts with some block size; it need not divide ours."""
        self.engine = VllmEngine(theirs, as_maps, as_bytes)
        self.ours = ours
        self.held = _held(ours, max_blocks=100_000)
        self.told = set[BlockDigest]()
        self.seq = 0

    @rule(prompt=_prompts, adapter=st.sampled_from(["", "sql"]), twice=st.booleans())
    def compute(self, prompt: list[int], adapter: str, twice: bool) -> None:
        """A prompt is computed, perhaps by two requests side by side."""
        self.engine.compute(prompt, adapter)
        if twice:
            self.engine.compute(prompt, adapter, beside_another=True)

    @precondition(lambda self: self.engine.copies)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Any block goes: a tail, a head or one in the middle."""
        self.engine.evict(data.draw(st.integers(0, len(self.engine.copies) - 1)))

    @rule()
    def clear(self) -> None:
        """The prefix cache is reset."""
        self.engine.clear()

    @invariant()
    def exact(self) -> None:
        """After each batch."""
        if not hasattr(self, "engine"):
            return
        for event in decode_batch(self.engine.batch()).events:
            self.held.apply(event)
        truth = self.engine.truth(self.ours)
        for message in self.held.take():
            self._follow(message)
        assert self.told == truth == _snapshot(self.held)
        assert len(self.held) == len({copy.name for copy in self.engine.copies})

    def _follow(self, message: BlocksStored | BlocksDropped | BlocksSnapshot) -> None:
        digests = split(message.digests)
        assert len(set(digests)) == len(digests)
        if isinstance(message, BlocksSnapshot):
            assert message.seq >= self.seq
            self.told = set(digests)
        else:
            assert message.seq == self.seq + 1
            if isinstance(message, BlocksStored):
                assert self.told.isdisjoint(digests)
                self.told.update(digests)
            else:
                assert self.told.issuperset(digests)
                self.told.difference_update(digests)
        self.seq = message.seq


ExactlyWhatIsInReach.TestCase.settings = settings(stateful_step_count=20)
TestExactlyWhatIsInReach = ExactlyWhatIsInReach.TestCase
