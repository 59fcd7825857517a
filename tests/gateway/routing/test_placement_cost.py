"""The cost of each worker and the choice."""

import msgspec
import pytest

from gateway.routing.placement_cost import Option, PlacementWork, choose
from gateway.routing.worker import PlaceReservation, Worker
from protocol.ids import WorkerId
from protocol.messages import DraftResults, Fault
from tests.fakes.fleet import BLOCK, W1, W2, W3, facts, hello, load, request


def _worker(worker_id: WorkerId, *, running: int = 0, rate: float = 10_000.0) -> Worker:
    worker = Worker(worker_id, hello(f"w{worker_id[0]}", facts()), 0.0)
    worker.report(load(running=running, rate=rate), 0.0)
    return worker


def _work(
    *,
    blocks: int = 100,
    sharing: tuple[tuple[int, int], ...] = (),
    home: WorkerId | None = None,
    prefer: WorkerId | None = None,
    session: str = "s",
    num_waiting: float = 0.0,
) -> PlacementWork:
    return PlacementWork(
        session=session,
        prompt_tokens=blocks * BLOCK + 8,
        block_size=BLOCK,
        expected_output=100,
        sharing=sharing,
        home=home,
        prefer=prefer,
        num_waiting=num_waiting,
    )


def test_the_worker_that_holds_the_prompt_wins() -> None:
    """Uncached tokens cost their prefill time."""
    options = [Option(_worker(W1), 0, 500), Option(_worker(W2), 90, 500)]
    choice = choose(_work(), options, 0.0)
    assert choice.worker.worker_id == W2
    assert choice.best.cached_tokens == 90 * BLOCK
    assert choice.best.uncached_tokens == 10 * BLOCK + 8
    assert choice.best.prefill_s == pytest.approx((10 * BLOCK + 8) / 10_000)
    assert choice.reason.startswith("w2: 2880 of 3208 tokens cached; wait 0 + prefill 33")
    assert choice.reason.endswith("next w1 321 ms")


def test_affinity_survives_load_that_costs_less_than_the_cache() -> None:
    """No threshold drops the cache: the busier worker keeps a long conversation."""
    options = [Option(_worker(W1, running=3), 990, 0), Option(_worker(W2), 0, 0)]
    assert choose(_work(blocks=1000), options, 0.0).worker.worker_id == W1


def test_load_that_costs_more_than_the_cache_moves_the_work() -> None:
    """A short cached prefix is no reason to join sixteen others."""
    options = [Option(_worker(W1, running=16), 9, 0), Option(_worker(W2), 0, 0)]
    assert choose(_work(blocks=10), options, 0.0).worker.worker_id == W2


def test_rates_are_the_workers_own() -> None:
    """A cold prompt goes to the faster card."""
    options = [Option(_worker(W1, rate=5_000.0), 0, 0), Option(_worker(W2, rate=50_000.0), 0, 0)]
    assert choose(_work(), options, 0.0).worker.worker_id == W2


def test_an_unmeasured_worker_counts_as_its_peers() -> None:
    """A new worker gets its share at once, else it would stay unmeasured."""
    fresh = Worker(W2, hello("w2", facts()), 0.0)
    options = [Option(_worker(W1, running=1, rate=50_000.0), 0, 0), Option(fresh, 0, 0)]
    assert choose(_work(), options, 0.0).worker.worker_id == W2


def _learned(worker: Worker, tokens_per_s: float, now: float) -> None:
    for _ in range(50):
        worker.prefill_rate.learn(1_000, 1_000 * 500, 1_000 / tokens_per_s, now)


def test_a_worker_that_was_slow_is_tried_again() -> None:
    """A measurement counts less with its age, so small differences are forgotten first. Its peers,
    which get requests all the time, keep their measured rates.
    """
    slow, slower, fast = _worker(W1), _worker(W2), _worker(W3)
    _learned(slow, 8_000.0, 0.0)
    _learned(slower, 2_000.0, 0.0)
    options = [Option(slow, 0, 0), Option(slower, 0, 0), Option(fast, 0, 500)]
    asked: dict[float, str] = {}
    for now in (0.0, 10.0, 50.0, 600.0):
        _learned(fast, 10_000.0, now)
        # The least used of those that cost the same.
        asked[now] = choose(_work(session="b"), options, now).worker.name
    assert asked[0.0] == asked[10.0] == fast.name
    assert asked[50.0] == slow.name
    costs = [score.cost_ms for score in choose(_work(), options, 600.0).scores]
    assert max(costs) < 1.01 * min(costs)


@pytest.mark.parametrize(("rate", "running"), [(5e-324, 0), (5e-324, 3), (1e15, 0)])
def test_an_impossible_rate_breaks_no_cost(rate: float, running: int) -> None:
    """A worker that reports nonsense is the worse choice; its numbers stay finite."""
    options = [Option(_worker(W1, running=running, rate=rate), 0, 0), Option(_worker(W2), 0, 0)]
    choice = choose(_work(), options, 0.0)
    assert choice.best.prefill_s < 1e9
    alone = choose(_work(), options[:1], 0.0)
    assert alone.best.prefill_s < 1e9
    if rate < 1:
        assert choice.worker.worker_id == W2


def test_a_single_step_time_moves_no_request() -> None:
    """A step with a long prompt in it takes ten times as long as the next one: where a worker is
    computing one now, answers are no slower for it in the long run.
    """
    busy, calm = _worker(W1, running=8), _worker(W2, running=8)
    busy.report(load(running=8, step_ms=200.0), 0.0)
    options = [Option(busy, 90, 0), Option(calm, 0, 0)]
    choice = choose(_work(), options, 0.0)
    assert choice.worker.worker_id == W1
    harms = [score.interference_ms for score in choose(_work(blocks=0), options, 0.0).scores]
    assert harms[0] == pytest.approx(harms[1])


def test_on_a_slow_worker_answers_are_slower() -> None:
    """One more sequence costs a worker of a quarter of the speed four times as much."""
    slow, fast = _worker(W1, running=4, rate=5_000.0), _worker(W2, running=4, rate=20_000.0)
    work = _work(blocks=0)
    scores = choose(work, [Option(slow, 0, 0), Option(fast, 0, 0)], 0.0).scores
    assert scores[0].interference_ms == pytest.approx(4 * scores[1].interference_ms)


def test_answers_of_several_tokens_a_step_are_slowed_in_fewer_steps() -> None:
    """Answers of several tokens a step are slowed in fewer steps, by what was measured lately of
    accepted drafts; an engine that begins anew counts as any other.
    """
    plain, drafting = _worker(W1, running=4), _worker(W2, running=4)
    said = load(running=4, rate=10_000.0)

    def tell(passes: int, tokens: int) -> None:
        figures = DraftResults("dflash", passes, tokens, (passes,), (tokens - passes,), 7.0, 2.0)
        drafting.report(msgspec.structs.replace(said, drafting=figures), 0.0)

    def harms() -> list[float]:
        options = [Option(plain, 0, 0), Option(drafting, 0, 0)]
        return [score.interference_ms for score in choose(_work(blocks=0), options, 0.0).scores]

    own_ms = 0.3 * 4 * 0.8  # eight tokens of prompt at 10,000 a second
    tell(1_000, 4_000)
    assert harms()[0] - own_ms == pytest.approx(4 * (harms()[1] - own_ms))
    tell(2_000, 6_000)  # of late two tokens a pass
    assert harms()[0] - own_ms == pytest.approx(2 * (harms()[1] - own_ms))
    tell(2_000, 6_000)
    assert drafting.pass_tokens == pytest.approx(2.0)
    tell(50, 50)  # another engine, whose drafts are not accepted
    assert drafting.pass_tokens == pytest.approx(1.9)
    drafting.fail(Fault("w2", 1, "gone", None), 0.0)
    assert drafting.pass_tokens == 1.0


def test_a_prefix_that_is_still_computed_is_waited_for() -> None:
    """A short rest behind a prefix on its way cannot begin beside it: it would compute it again."""
    worker = _worker(W1)
    worker.take(
        PlaceReservation(request(1), "s", worker, 0, 32_000, 100, 0, 0.0, 3.2, fresh_tokens=32_000)
    )
    stored, coming = (Option(worker, 1000, 0, 0.0, number) for number in (0, 1000))
    work = _work(blocks=1001)
    assert choose(work, [stored], 0.0).best.wait_ms == pytest.approx(409.6)
    later = choose(work, [coming], 0.0).best
    assert (later.wait_ms, later.uncached_tokens) == (pytest.approx(3200.0), 40)


def test_a_prefix_that_others_share_is_charged_in_part() -> None:
    """Nine conversations with one prefix make a second copy of it worth its price."""
    options = [Option(_worker(W1, running=2), 90, 0), Option(_worker(W2), 0, 0)]
    alone = choose(_work(), options, 0.0)
    shared = choose(_work(sharing=((90, 9),)), options, 0.0)
    assert (alone.worker.worker_id, shared.worker.worker_id) == (W1, W2)


def test_a_hit_never_covers_the_last_token() -> None:
    """One token at least is computed, so the block of the last token is never counted."""
    whole = PlacementWork("s", 10 * BLOCK, BLOCK, 100)
    choice = choose(whole, [Option(_worker(W1), 10, 0)], 0.0)
    assert choice.best.uncached_tokens == BLOCK
    assert choice.reason.endswith("the only one with room")


def test_ties_go_to_preference_then_home_then_the_emptier() -> None:
    """Equal costs leave the choice to what the conversation knows."""
    options = [Option(_worker(W1), 0, 7), Option(_worker(W2), 0, 3)]
    assert choose(_work(prefer=W1, home=W2), options, 0.0).worker.worker_id == W1
    assert choose(_work(home=W1), options, 0.0).worker.worker_id == W1
    least = choose(_work(), options, 0.0)
    assert least.worker.worker_id == W2
    assert "tie, least used" in least.reason


def test_a_tie_goes_to_the_holder_of_the_conversation() -> None:
    """A tie goes to the holder of the conversation, also at a gateway that placed none of its
    requests, or only an early one: after the death of the other gateway only the blocks are known.
    """
    options = [Option(_worker(W1, running=3), 8, 7), Option(_worker(W2), 0, 0)]
    for home in (None, W2):
        choice = choose(_work(blocks=8, home=home), options, 0.0)
        assert choice.scores[0].cost_ms > choice.scores[1].cost_ms
        assert (choice.worker.worker_id, choice.why) == (W1, "own")
        assert "tie, holds most of the conversation" in choice.reason
    assert choose(_work(blocks=8, prefer=W2), options, 0.0).worker.worker_id == W2


def test_a_shared_prefix_decides_no_tie() -> None:
    """A prefix that many conversations share decides no tie, so it spreads over workers that cost
    the same.
    """
    options = [Option(_worker(W1), 100, 7), Option(_worker(W2), 0, 0)]
    shared = choose(_work(sharing=((100, 9_999),)), options, 0.0)
    assert (shared.worker.worker_id, shared.why) == (W2, "even")


def test_the_lot_is_the_same_each_time_and_fair_over_conversations() -> None:
    """Without anything else to tell them apart, conversations spread by hash."""
    options = [Option(_worker(W1), 0, 0), Option(_worker(W2), 0, 0)]
    picks = [choose(_work(session=str(n)), options, 0.0).worker.worker_id for n in range(200)]
    assert 60 < picks.count(W1) < 140
    assert picks[7] == choose(_work(session="7"), options[::-1], 0.0).worker.worker_id


def test_model_without_block_size_is_all_uncached() -> None:
    """Before the block size is known nothing can be cached."""
    work = PlacementWork("s", 100, 0, 10)
    assert choose(work, [Option(_worker(W1), 0, 0)], 0.0).best.cached_tokens == 0


def test_a_queue_makes_the_cache_dearer() -> None:
    """A wait that is worth a short prefill elsewhere is borne when others would wait for it."""
    busy = _worker(W1)
    options = [Option(busy, 90, 0, promised_s=0.5), Option(_worker(W2), 0, 0)]
    calm, crowded = (choose(_work(num_waiting=number), options, 0.0) for number in (0.0, 4.0))
    assert (calm.worker.worker_id, crowded.worker.worker_id) == (W2, W1)
    assert (calm.why, crowded.why) == ("moved", "cached")


@pytest.mark.parametrize(
    ("work", "num_options", "why"),
    [
        ({}, 1, "only"),
        ({"prefer": W2}, 2, "prefer"),
        ({"home": W2}, 2, "home"),
        ({}, 2, "even"),
    ],
)
def test_every_decision_says_why_in_one_word(
    work: dict[str, WorkerId], num_options: int, why: str
) -> None:
    """The word is the label of a metric."""
    options = [Option(_worker(W1), 0, 0), Option(_worker(W2), 0, 0)][:num_options]
    assert choose(_work(**work), options, 0.0).why == why
