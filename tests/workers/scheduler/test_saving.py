"""Where states are saved, and which prompts wait for them."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from protocol.hashing import block_digests, root_digest
from protocol.tokens import pack_tokens
from tests.fakes.drafts import HostDrafts, Mood
from tests.fakes.scheduling import EOS, MODEL, Engine, make_submit
from workers.scheduler.plan import NO_SLOT
from workers.scheduler.saving import SavePolicy, positions_to_save

POLICY = SavePolicy()


@given(st.lists(st.integers(0, 40_000), min_size=3, max_size=3).map(sorted))
@example([POLICY.every - 192, POLICY.every - 192, 2 * POLICY.every + 192])  # near two of the grid
def test_a_divergence_computes_little_again(places: list[int]) -> None:
    """Wherever the next prompt parts from this one, a state lies at most 4,096 tokens before; or
    this one began later.
    """
    num_hit, num_matched, num_tokens = places[0] // 64 * 64, places[1], places[2] + 1
    saved = positions_to_save(num_tokens, num_hit, num_matched, POLICY)
    assert saved == sorted(set(saved))
    assert all(place % POLICY.grain == 0 for place in saved)
    assert all(num_hit + POLICY.least <= place <= num_tokens for place in saved)
    for before, after in pairwise([num_hit, *saved, num_tokens]):
        assert after - before <= 4096


@given(st.integers(2, 40_000) | st.integers(1, 600).map(lambda count: 64 * count))
def test_the_next_turn_finds_the_end_of_a_prompt(num_tokens: int) -> None:
    """A cold one saves it unless it is so short that computing it again is no matter."""
    saved = positions_to_save(num_tokens, 0, 0, POLICY)
    end = (num_tokens - 1) // POLICY.grain * POLICY.grain
    assert (end in saved) == (end >= POLICY.least)
    assert (num_tokens in saved) == (num_tokens >= POLICY.least and num_tokens % POLICY.grain == 0)
    inner = [place for place in saved if place < num_tokens]
    gaps = [after - before for before, after in zip([0, *inner], inner, strict=False)]
    assert all(gap >= POLICY.least for gap in gaps)


def test_behind_a_prompt_on_the_grid_a_turn_computes_its_own_tokens() -> None:
    """Behind a prompt whose end is on the grid a turn computes only its own tokens, also where one
    token was asked for and no decode followed; the same prompt again begins at the state before.
    """
    for lookahead, max_tokens in ((0, 1), (1, 1), (0, 3), (1, 3)):
        engine = Engine(num_blocks=64, num_states=8, context_length=60, lookahead=lookahead)
        prompt = list(range(8, 40))
        for number, more in enumerate(([], [4, 5, 6], [])):
            engine.submit(make_submit(number, [*prompt, *more], max_tokens=max_tokens))
            engine.drain(lambda _: (7,))
        hits = [engine.ledger.accepted[number].cached_tokens for number in range(3)]
        assert hits == [0, 32, 28]


def test_what_lies_behind_a_whole_prompt_replaces_an_answers_state() -> None:
    """The state behind a whole prompt replaces that of an answer, in a pool full of states that
    nothing continued.
    """
    engine = Engine(num_blocks=64, num_states=2, context_length=60)
    for number in range(3):
        engine.submit(make_submit(number, [number, 2], max_tokens=30))
        engine.drain(lambda _: (3,))
    prompt = list(range(8, 24))
    engine.submit(make_submit(3, prompt))
    engine.drain(lambda _: (7,))
    engine.submit(make_submit(4, [*prompt, 4, 5]))
    engine.drain(lambda _: (7,))
    assert engine.ledger.accepted[4].cached_tokens == 16


def test_where_two_part_a_state_is_saved() -> None:
    """The second to come this way saves it; the third begins there."""
    engine = Engine(num_blocks=64, num_states=8, context_length=60)
    common = [1, 2] * 11
    for number, own in enumerate(([4, 5] * 6, [6, 6] * 6, [8, 9] * 6)):
        engine.submit(make_submit(number, common + own))
        engine.drain()
    hits = [engine.ledger.accepted[number].cached_tokens for number in range(3)]
    assert hits == [0, 12, 20]  # behind every 12 tokens one is kept too
    assert engine.runner.num_restored == 2


def test_sequences_that_come_together_share_their_prefix() -> None:
    """The first saves where the others part from it, although it goes on; they wait for that."""
    engine = Engine(num_blocks=64, num_states=8, context_length=60, token_budget=8)
    common = [1, 2, 3] * 6 + [1]  # no whole number of blocks
    for number, own in enumerate(([4, 5] * 6, [6, 6] * 4, [7, 8] * 5)):
        engine.submit(make_submit(number, common + own))
    engine.drain()
    hits = [engine.ledger.accepted[number].cached_tokens for number in range(3)]
    assert hits == [0, 16, 16]


def test_each_of_those_that_wait_gets_its_own_state() -> None:
    """One shares less than the other: the longer wish does not replace the shorter."""
    engine = Engine(num_blocks=64, num_states=8, context_length=60, token_budget=8)
    first = list(range(8, 40))
    engine.submit(make_submit(0, first))
    engine.submit(make_submit(1, [*first[:28], 1, 2]))
    engine.submit(make_submit(2, [*first[:20], 1, 2]))
    engine.drain()
    hits = [engine.ledger.accepted[number].cached_tokens for number in range(3)]
    assert hits == [0, 28, 20]


def test_without_slots_nothing_waits_in_vain_for_ever() -> None:
    """Every prompt is computed from its first token."""
    engine = Engine(num_blocks=64, num_states=0, context_length=60)
    for number in range(3):
        engine.submit(make_submit(number, [1, 2, 3] * 8))
    engine.drain()
    assert {answer.cached_tokens for answer in engine.ledger.accepted.values()} == {0}
    assert all(chunk.saves == () for plan in engine.plans for chunk in plan.chunks)


def test_a_preempted_sequence_goes_on_from_a_state() -> None:
    """It computes again only from within its answer."""
    engine = Engine(num_blocks=16, num_states=8, context_length=60, token_budget=24, max_seqs=2)
    for number in range(2):
        engine.submit(make_submit(number, [number, 2, 3] * 6, max_tokens=20))
    engine.drain(lambda _: (11,))
    assert engine.scheduler.load(1, 0.0, 0.0).preemptions > 0
    restored = [
        chunk for plan in engine.plans for chunk in plan.chunks if chunk.restores != NO_SLOT
    ]
    assert [chunk.start for chunk in restored] == [24]


@given(
    num_prompt=st.integers(1, 40),
    num_outputs=st.integers(1, 40),
    stops=st.booleans(),
    lookahead=st.sampled_from((0, 1)),
    data=st.data(),
)
def test_the_turn_behind_an_answer_computes_little_of_it_again(
    num_prompt: int, num_outputs: int, stops: bool, lookahead: int, data: st.DataObject
) -> None:
    """However long both are, and however the answer ends, while another one runs."""
    engine = Engine(num_blocks=64, num_states=8, context_length=120, lookahead=lookahead)
    prompt, answer = [1, 2, 3] * 14, [4, 5, 6] * 14
    prompt, answer = prompt[:num_prompt], [*answer[: num_outputs - 1], EOS if stops else 4]
    said = {0: answer, 1: [5] * 30}
    engine.submit(make_submit(1, [6] * data.draw(st.integers(1, 9)), max_tokens=30))
    engine.submit(make_submit(0, prompt, max_tokens=num_outputs))
    number_of = {seq: number for number, seq in engine.runner.seq_of.items()}

    def sample(seq: int) -> tuple[int, ...]:
        number_of.update((seq, number) for number, seq in engine.runner.seq_of.items())
        at = len(engine.runner.tokens[seq]) - (num_prompt if number_of[seq] == 0 else 0)
        return (said[0][at] if number_of[seq] == 0 and at < num_outputs else 5,)

    engine.drain(sample)
    assert engine.ledger.finished[0].output_tokens == num_outputs
    num_computed = num_prompt + num_outputs - 1
    engine.submit(make_submit(2, [*prompt, *answer, 2, 2, 2, 2, 2]))
    engine.drain()
    assert num_computed - engine.ledger.accepted[2].cached_tokens <= 8


def test_an_answer_under_way_has_one_state() -> None:
    """An answer under way has one state, also where there is only one slot. It moves on with the
    answer, and stays where its sequence was aborted. Gateways are told of this state.
    """
    for num_states in (1, 5):
        engine = Engine(num_blocks=64, num_states=num_states, context_length=120, lookahead=1)
        engine.submit(make_submit(0, [1, 2], max_tokens=50))
        states = engine.scheduler.blocks.states
        for _ in range(44):
            engine.step(lambda _: (3,))
            assert len(engine.ledger.states) <= 1
            assert states.pool.num_slots - len(states.pool._free) <= 2
        digests = block_digests(root_digest(MODEL), pack_tokens([1, 2, *[3] * 38]), 4)
        assert engine.ledger.states == {digests[-1]}
        engine.scheduler.abort(1, make_submit(0, [1]).request_id, 0)
        engine.submit(make_submit(1, [1, 2, *[3] * 48], max_tokens=1))
        engine.drain()
        assert engine.ledger.accepted[1].cached_tokens == 40


def test_each_of_several_answers_has_its_own_state() -> None:
    """Each of several answers has its own state. They share the state of what they have in common;
    whichever answer is continued is found.
    """
    engine = Engine(num_blocks=64, num_states=8, context_length=120, lookahead=1)
    for number in range(3):
        engine.submit(make_submit(number, [1, 2] * 6, max_tokens=22))
    said = {number: [number + 3] * 22 for number in range(3)}

    def sample(seq: int) -> tuple[int, ...]:
        own = [number for number, named in engine.runner.seq_of.items() if named == seq]
        return (own[0] + 3,)

    engine.drain(sample)
    for number in range(3):
        engine.submit(make_submit(number + 3, [*[1, 2] * 6, *said[number], 6], max_tokens=1))
        engine.drain()
    found = [engine.ledger.accepted[number + 3].cached_tokens for number in range(3)]
    assert found == [32, 32, 32]


def test_a_swapped_answer_goes_on_saving() -> None:
    """What was passed in between is made up for."""
    engine = Engine(
        num_blocks=16,
        num_states=4,
        context_length=60,
        token_budget=24,
        max_seqs=2,
        host_pages=22,
        lookahead=1,
    )
    for number in range(2):
        engine.submit(make_submit(number, [number, 2, 3] * 6, max_tokens=36))
    engine.drain(lambda _: (5,))
    assert engine.runner.num_swapped > 0
    engine.submit(make_submit(2, [*[1, 2, 3] * 6, *[5] * 36, 1], max_tokens=1))
    engine.drain()
    assert 18 + 35 - engine.ledger.accepted[2].cached_tokens <= 8


def test_a_state_whose_keys_are_gone_is_gone() -> None:
    """The blocks of the first prompt are taken by others; nothing is found."""
    engine = Engine(num_blocks=10, num_states=8, context_length=40)
    for number, token in enumerate((1, 2, 3, 1)):
        engine.submit(make_submit(number, [token] * 22))
        engine.drain()
    assert engine.ledger.accepted[3].cached_tokens == 0
    states = engine.scheduler.blocks.states
    assert 0 < len(states.pool._snapshots) <= 3


def test_keys_without_a_state_wait_for_the_state() -> None:
    """The blocks of a prompt are cached, its state is gone: of two that come one computes it."""
    engine = Engine(num_blocks=64, num_states=1, context_length=60, token_budget=8)
    prompt = [1, 2, 3] * 10
    for number, tokens in enumerate((prompt, [5, 6] * 12)):
        engine.submit(make_submit(number, tokens))
        engine.drain()
    for number in (2, 3):
        engine.submit(make_submit(number, prompt))
    engine.drain()
    hits = [engine.ledger.accepted[number].cached_tokens for number in (2, 3)]
    assert hits == [0, 28]


def test_a_short_sequence_has_all_its_drafts() -> None:
    """A short sequence has all its drafts: only a position to save limits drafts, not how few
    tokens the sequence has yet.
    """
    proposer = HostDrafts([[1] * 40], depth=7, mood=Mood.RIGHT)
    engine = Engine(num_blocks=64, num_states=8, context_length=60, proposer=proposer, along=16)
    engine.submit(make_submit(0, [1], max_tokens=12))
    engine.step()
    plan = engine.launch()
    assert plan is not None
    assert [len(chunk.drafts) for chunk in plan.chunks] == [7]
