"""The policy of turns: in virtual time with simulated workers, and rule by rule."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.fakes.turns_world import Model, TurnsWorld
from workers.turns import Member, MemberState, PauseWatch, SharedCard, TurnPolicy
from workers.turns.pauses import share_ending, with_pause

GIB = 2**30
CARD = 80 * GIB


def two() -> list[Model]:
    return [Model("a", 60 * GIB), Model("b", 60 * GIB)]


def switches(world: TurnsWorld) -> int:
    return len(world.switches)


@pytest.mark.parametrize("gap_s", [0.5, 3.0, 30.0], ids=["overlapping", "close", "apart"])
def test_alternating_bursts_of_fifty_switch_once_per_burst(gap_s: float) -> None:
    world = TurnsWorld(two(), CARD)
    came = [(number * gap_s, "ab"[number % 2]) for number in range(12)]
    for at, name in came:
        world.arrive(at, name, 50)
    world.run()
    assert len(world.served) == 12 * 50
    assert switches(world) <= len(came)


def test_nobody_waits_longer_than_a_change_and_the_own_queue() -> None:
    """Bursts that do not overlap. The change is one falling asleep and one wake."""
    world = TurnsWorld(two(), CARD)
    for number in range(10):
        world.arrive(number * 20.0, "ab"[number % 2], 50)
    world.run()
    own_queue_s = 50 / 8 * 0.5 + 0.5
    worst = max(began - came for _, came, began in world.served)
    assert worst <= 2.0 + 1.0 + own_queue_s
    assert switches(world) == 10


SLOW = {"wake_s": 4.5, "sleep_s": 11.0, "service_s": 1.0}
QUICK = {"wake_s": 0.05, "sleep_s": 0.1, "service_s": 1.0}
"""The driver's checkpoint of a vLLM, and an engine of our own."""


@pytest.mark.parametrize("rest_s", [1.0, 5.0, 20.0], ids=lambda rest_s: f"{rest_s} s")
@pytest.mark.parametrize("other", [SLOW, QUICK], ids=["slow and slow", "slow and quick"])
def test_one_person_who_alternates_waits_for_the_changes_alone(
    rest_s: float, other: dict[str, float]
) -> None:
    """Three questions each, with half a second between them, then the other model: nobody waits for
    the one that was left. That its next question comes soon behind the other's answer is no sign
    that it was in use, although its return would cost 15 s.
    """
    world = TurnsWorld([Model("a", 60 * GIB, **SLOW), Model("b", 60 * GIB, **other)], CARD)
    steps = [(name, pause_s) for name in "ababab" for pause_s in (0.5, 0.5, rest_s)]
    world.loop(0.0, steps)
    world.run()
    a, b = world.models["a"], world.models["b"]
    change_s = {"a": b.sleep_s + a.wake_s, "b": a.sleep_s + b.wake_s}
    assert all(began - came <= change_s[name] + 1e-6 for name, came, began in world.served)
    assert switches(world) == 6


@pytest.mark.parametrize("pause_s", [0.2, 2.0, 5.0], ids=lambda pause_s: f"{pause_s} s")
@pytest.mark.parametrize("times", [SLOW, {"service_s": 1.0}], ids=["slow", "middling"])
@pytest.mark.parametrize("other", [None, QUICK], ids=["alike", "beside a quick one"])
def test_two_agents_beside_each_other_neither_thrash_nor_starve(
    pause_s: float, times: dict[str, float], other: dict[str, float] | None
) -> None:
    """Each asks again after a pause, all the time: the one that waits takes its turn, and the
    changes take no more than three fifths of the time.
    """
    source = random.Random(f"agents {pause_s}")
    models = [Model("a", 60 * GIB, **times), Model("b", 60 * GIB, **(other or times))]
    world = TurnsWorld(models, CARD)
    for at, name in ((0.0, "a"), (5.0, "b")):
        world.loop(at, [(name, source.expovariate(1 / pause_s)) for _ in range(150)])
    world.run()
    change_s = sum(one.change_s for one in models) / 2
    assert len(world.served) == 300
    assert switches(world) * change_s <= 0.6 * world.now
    assert max(began - came for _, came, began in world.served) <= 3 * 2 * change_s


def test_models_that_fit_together_never_switch() -> None:
    world = TurnsWorld([Model("a", 30 * GIB), Model("b", 30 * GIB)], CARD)
    for number in range(40):
        world.arrive(number * 0.7, "ab"[number % 2], 3)
    world.run()
    assert sorted(world.switches) == ["a", "b"]
    assert not world.sleeps


def test_the_idle_model_gives_way_and_the_one_in_use_is_protected() -> None:
    models = [Model("a", 30 * GIB), Model("b", 30 * GIB), Model("c", 40 * GIB)]
    world = TurnsWorld(models, CARD)
    for number in range(200):
        world.arrive(number * 0.2, "a")  # in use all the time
    world.arrive(1.0, "b")
    world.arrive(20.0, "c", 5)
    world.run()
    assert [name for _, name, _ in world.sleeps] == ["b"]


def test_a_lone_request_waits_until_its_wait_costs_as_much_as_the_change() -> None:
    world = TurnsWorld(two(), CARD)
    for number in range(100):
        world.arrive(number * 0.4, "a")
    world.arrive(10.05, "b")
    world.run()
    ((at, name, target), *_) = world.sleeps
    assert (name, target) == ("a", "b")
    assert at - 10.05 == pytest.approx(6.0, abs=1.5)  # a round: 2 + 1 + 2 + 1 s


def test_a_switch_frees_no_more_workers_than_needed() -> None:
    card = SharedCard(100)
    members = [
        Member("big", "awake", awake_bytes=60, idle_since=0.0),
        Member("small", "awake", awake_bytes=30, idle_since=-50.0),
        Member("new", "asleep", awake_bytes=65, waiting=50, waited_s=500.0, oldest_at=90.0),
    ]
    plan = TurnPolicy().decide(members, card, 100.0)
    assert plan.sleep == ("big",)


def test_what_others_hold_is_said_and_the_wake_is_tried_again() -> None:
    one = Member("a", "asleep", awake_bytes=60 * GIB, waiting=1, waited_s=1.0, oldest_at=99.0)
    policy = TurnPolicy()
    plan = policy.decide([one], SharedCard(CARD, 30 * GIB), 100.0)
    assert not plan.wake
    assert plan.why == {"a": "it needs 60.00 GiB of 80.00 GiB; other processes hold 30.00 GiB"}
    assert plan.next_at is not None
    assert plan.next_at > 100.0
    assert policy.decide([one], SharedCard(CARD), plan.next_at).wake == ("a",)


def test_one_that_has_no_room_does_not_bar_another() -> None:
    members = [
        Member("huge", "asleep", awake_bytes=90, waiting=9, waited_s=900.0, oldest_at=0.0),
        Member("a", "awake", awake_bytes=60, idle_since=0.0),
        Member("b", "asleep", awake_bytes=60, waiting=9, waited_s=90.0, oldest_at=90.0),
    ]
    plan = TurnPolicy().decide(members, SharedCard(80), 100.0)
    assert plan.sleep == ("a",)
    assert "huge" in plan.why


def test_room_that_was_made_is_for_the_one_it_was_made_for() -> None:
    policy = TurnPolicy()
    a = Member("a", "awake", awake_bytes=60, idle_since=0.0)
    b = Member("b", "asleep", awake_bytes=60, waiting=9, waited_s=90.0, oldest_at=90.0)
    assert policy.decide([a, b], SharedCard(80), 100.0).sleep == ("a",)
    # Meanwhile a request for `a` came, which has waited for longer than those of `b`.
    a = replace(a, state="asleep", since=101.0, waiting=1, waited_s=60.0, oldest_at=41.0)
    c = Member("c", "asleep", awake_bytes=30, waiting=1, waited_s=99.0, oldest_at=2.0)
    assert policy.decide([a, b, c], SharedCard(80), 101.0).wake == ("b",)


def test_a_worker_that_was_never_measured_has_the_card_alone() -> None:
    new = Member("new", "asleep", waiting=1, waited_s=50.0, oldest_at=50.0)
    small = Member("small", "awake", awake_bytes=1, idle_since=0.0)
    policy = TurnPolicy()
    assert policy.decide([small, new], SharedCard(80), 100.0).sleep == ("small",)
    small = replace(small, state="asleep")
    assert policy.decide([small, new], SharedCard(80), 101.0).wake == ("new",)


def test_a_first_look_takes_nobodys_place() -> None:
    new = Member("new", "asleep", wants_look=True)
    small = Member("small", "awake", awake_bytes=1, idle_since=0.0)
    policy = TurnPolicy()
    plan = policy.decide([small, new], SharedCard(80), 100.0)
    assert (plan.sleep, plan.wake) == ((), ())
    plan = policy.decide([replace(small, state="asleep"), new], SharedCard(80), 100.0)
    assert plan.wake == ("new",)


def test_idle_workers_fall_asleep_after_their_time_and_always_resident_ones_never() -> None:
    members = [
        Member("a", "awake", awake_bytes=1, idle_since=0.0, idle_s=60.0),
        Member("b", "awake", awake_bytes=1, idle_since=0.0, idle_s=60.0, running=1),
        Member("c", "awake", awake_bytes=1, is_always=True),
    ]
    policy = TurnPolicy()
    early = policy.decide(members, SharedCard(80), 59.0)
    assert (early.sleep, early.next_at) == ((), 60.0)
    assert policy.decide(members, SharedCard(80), 60.0).sleep == ("a",)


def test_wishes_of_operators() -> None:
    awake = Member("a", "awake", awake_bytes=60, running=5, oldest_at=0.0, wish="sleep")
    asleep = Member("b", "asleep", awake_bytes=60, wish="wake")
    assert TurnPolicy().decide([awake], SharedCard(80), 1.0).sleep == ("a",)
    busy = replace(awake, wish=None)
    assert TurnPolicy().decide([busy, asleep], SharedCard(80), 1.0).sleep == ("a",)


@pytest.mark.parametrize(
    "asked",
    [{"wish": "wake"}, {"wants_look": True}, {"waiting": 1, "waited_s": 9.0, "oldest_at": 0.0}],
    ids=["a wish", "a first look", "a request"],
)
def test_a_wake_that_failed_is_tried_again_at_the_end_of_its_pause(asked: dict[str, Any]) -> None:
    one = Member("a", "asleep", awake_bytes=60, must_wait_until=105.0, **asked)
    policy = TurnPolicy()
    plan = policy.decide([one], SharedCard(80), 100.0)
    assert (plan.wake, plan.next_at) == ((), 105.0)
    assert policy.decide([one], SharedCard(80), 105.0).wake == ("a",)


@pytest.mark.parametrize(
    "asked", [{"wish": "sleep"}, {"idle_s": 1.0}], ids=["a wish", "an idle time"]
)
def test_a_sleep_that_failed_is_tried_again_at_the_end_of_its_pause(asked: dict[str, Any]) -> None:
    one = Member("a", "awake", awake_bytes=60, must_wait_until=105.0, **asked)
    policy = TurnPolicy()
    plan = policy.decide([one], SharedCard(80), 100.0)
    assert (plan.sleep, plan.next_at) == ((), 105.0)
    assert policy.decide([one], SharedCard(80), 105.0).sleep == ("a",)


def test_an_always_resident_worker_keeps_its_place_while_it_restarts() -> None:
    always = Member("c", "away", awake_bytes=50, is_always=True)
    one = Member("a", "asleep", awake_bytes=60, waiting=1, waited_s=9.0, oldest_at=0.0)
    plan = TurnPolicy().decide([always, one], SharedCard(80), 10.0)
    assert not plan.wake
    assert "always resident models hold" in plan.why["a"]


def test_workers_without_work_give_way_to_an_always_resident_one_that_starts() -> None:
    """Workers without work give way to an always resident one that starts. It came by a reload, or
    its supervisor had died, and waits for no turn. If it was measured, no more workers fall asleep
    than it needs.
    """
    idle = Member("a", "awake", awake_bytes=40, idle_since=5.0)
    longer = Member("b", "awake", awake_bytes=20, idle_since=1.0)
    busy = Member("c", "awake", awake_bytes=10, running=1, oldest_at=0.0)
    fails = Member("d", "awake", awake_bytes=5, must_wait_until=20.0)
    new = Member("new", "waking", is_always=True)
    policy, others = TurnPolicy(), [idle, longer, busy, fails]
    assert policy.decide([*others, new], SharedCard(80), 10.0).sleep == ("a", "b")
    for need, sleep in ((5, ()), (20, ("b",)), (30, ("b", "a"))):
        known = replace(new, awake_bytes=need)
        assert policy.decide([*others, known], SharedCard(80), 10.0).sleep == sleep
    on_demand = replace(new, is_always=False)
    assert policy.decide([*others, on_demand], SharedCard(80), 10.0).sleep == ()


def test_the_forecast_grows_along_the_line() -> None:
    members = [
        Member("a", "awake", awake_bytes=60, sleep_s=1.0, wake_s=2.0, running=1, oldest_at=0.0),
        Member("b", "asleep", awake_bytes=60, wake_s=2.0, waiting=1, oldest_at=99.0),
        Member("c", "asleep", awake_bytes=60, wake_s=4.0, waiting=1, oldest_at=99.5),
    ]
    due = TurnPolicy().decide(members, SharedCard(80), 100.0).due_s
    assert due == {"b": 3.0, "c": 8.0}


@given(st.randoms(use_true_random=False))
def test_random_schedules_starve_nobody(source: random.Random) -> None:
    play(source)


@pytest.mark.parametrize("block", range(4))
def test_ten_thousand_random_schedules(block: int) -> None:
    """Ten thousand random schedules, with HYPOTHESIS_PROFILE=fuzz; else a twentieth of them."""
    from hypothesis import settings

    count = 2500 if settings.get_current_profile_name() == "fuzz" else 125
    for number in range(count):
        play(random.Random(f"turns {block} {number}"))


def play(source: random.Random) -> None:
    """One schedule. The world itself checks the card's memory at every step."""
    models = [
        Model(
            name,
            source.randint(5, 75) * GIB,
            wake_s=source.uniform(0.1, 20),
            sleep_s=source.uniform(0.1, 10),
            service_s=source.uniform(0.05, 5),
            places=source.randint(1, 32),
            asleep_bytes=source.choice([0, 0, GIB // 2]),
            idle_s=source.choice([None, 0.5, 30.0]),
            is_measured=source.random() < 0.8,
        )
        for name in "abcd"[: source.randint(1, 4)]
    ]
    world = TurnsWorld(models, CARD, other_bytes=source.choice([0, GIB]))
    num = 0
    at = 0.0
    for _ in range(source.randint(1, 25)):
        at += source.choice([0.0, source.uniform(0, 2), source.uniform(0, 60)])
        count = source.choice([1, 1, 2, 50])
        world.arrive(at, source.choice(models).name, count)
        num += count
    world.run()
    assert len(world.served) == num, "a request was never served"
    worst = max(began - came for _, came, began in world.served)
    assert worst <= bound(world), "a request waited for longer than the rules allow"
    in_use = [one for one in world.models.values() if one.state == "awake"]
    assert all(not one.queue for one in in_use)


def bound(world: TurnsWorld) -> float:
    """All service there is, one after another, and for each change its time and its patience."""
    models = list(world.models.values())
    service = sum(
        world.models[name].service_s / world.models[name].places + 0.0
        for name, _, _ in world.served
    ) + sum(model.service_s for model in models) * (1 + len(world.switches))
    longest = max(
        (a.wake_s + a.sleep_s + b.wake_s + b.sleep_s) for a, b in itertools.product(models, models)
    )
    patience = max(20.0, 5 * max(longest, 70.0))  # unmeasured ones count by the prior
    return service + (patience + longest) * (1 + len(models))


SECONDS = {"sleep_s": 1.0, "wake_s": 2.0}
"""A round of two such workers takes 6 s, so their patience is 30."""


def test_wishes_against_the_rules_are_left() -> None:
    """An always resident worker stays, and requests do not wake one that is to sleep."""
    always = Member("c", "awake", awake_bytes=1, is_always=True, wish="sleep")
    kept = Member("a", "asleep", awake_bytes=1, waiting=9, waited_s=90.0, wish="sleep")
    plan = TurnPolicy().decide([always, kept], SharedCard(80), 100.0)
    assert (plan.sleep, plan.wake) == ((), ())


def test_a_promise_ends_with_the_wait_that_it_was_made_for() -> None:
    """The clients of `b` have left while `a` fell asleep for it: later it stands in line again."""
    policy = TurnPolicy()
    a = Member("a", "awake", awake_bytes=60, idle_since=0.0)
    b = Member("b", "asleep", awake_bytes=60, waiting=9, waited_s=90.0, oldest_at=90.0)
    assert policy.decide([a, b], SharedCard(80), 100.0).sleep == ("a",)
    a = replace(a, state="asleep", since=101.0)
    assert not policy.decide([a, replace(b, waiting=0, oldest_at=None)], SharedCard(80), 101.0).wake
    c = Member("c", "asleep", awake_bytes=60, waiting=1, waited_s=1.0, oldest_at=102.0)
    b = replace(b, waiting=1, waited_s=0.5, oldest_at=102.5)
    assert policy.decide([a, b, c], SharedCard(80), 103.0).wake == ("c",)


def test_a_restart_of_an_always_resident_worker_delays_no_turn() -> None:
    """A restart of an always resident worker delays no turn, because it was measured and its memory
    is known; one that was not measured may take any memory.
    """
    always = Member("c", "waking", awake_bytes=50, is_always=True)
    one = Member("a", "asleep", awake_bytes=20, waiting=1, waited_s=9.0, oldest_at=0.0)
    assert TurnPolicy().decide([always, one], SharedCard(80), 10.0).wake == ("a",)
    unknown = replace(always, awake_bytes=None)
    assert not TurnPolicy().decide([unknown, one], SharedCard(80), 10.0).wake


def test_one_that_is_awake_and_not_measured_shares_the_card_with_nobody() -> None:
    unknown = Member("x", "awake", idle_since=0.0)
    one = Member("a", "asleep", awake_bytes=1, waiting=1, waited_s=99.0, oldest_at=1.0)
    plan = TurnPolicy().decide([unknown, one], SharedCard(80), 100.0)
    assert (plan.sleep, plan.wake) == (("x",), ())


def begins_at(one: Member, victim: Member, now: float) -> float:
    """When `victim` falls asleep for `one`, as the policy says before and does then."""
    policy = TurnPolicy()
    plan = policy.decide([one, victim], SharedCard(80), now)
    if plan.sleep:
        return now
    assert plan.next_at is not None
    late = replace(one, waited_s=one.waited_s + one.waiting * (plan.next_at - now))
    assert policy.decide([late, victim], SharedCard(80), plan.next_at).sleep == (victim.name,)
    return plan.next_at


def test_one_that_has_just_woken_keeps_its_place_for_a_round() -> None:
    """However much waits; one without work gives way at once."""
    victim = Member("v", "awake", awake_bytes=60, running=1, oldest_at=99.0, since=99.0, **SECONDS)
    one = Member(
        "a", "asleep", awake_bytes=60, waiting=50, waited_s=2500.0, oldest_at=50.0, **SECONDS
    )
    assert begins_at(one, victim, 100.0) == 105.0
    idle = replace(victim, running=0, oldest_at=None, idle_since=100.0)
    assert begins_at(one, idle, 100.0) == 100.0


@pytest.mark.parametrize("came", [80.0, 95.0], ids=["older work", "dear work"])
def test_patience_ends(came: float) -> None:
    """Patience ends: earlier work, and work that costs more than the wait, delay a change for a
    bounded time.
    """
    busy = Member("v", "awake", awake_bytes=60, running=900, oldest_at=came, **SECONDS)
    one = Member("a", "asleep", awake_bytes=60, waiting=1, waited_s=10.0, oldest_at=90.0, **SECONDS)
    assert begins_at(one, busy, 100.0) == 120.0


def test_work_that_came_before_is_finished_first() -> None:
    """However much waits: the same burst a moment earlier would be worth the change."""
    busy = Member("v", "awake", awake_bytes=60, running=1, oldest_at=80.0, **SECONDS)
    one = Member(
        "a", "asleep", awake_bytes=60, waiting=50, waited_s=500.0, oldest_at=90.0, **SECONDS
    )
    assert begins_at(one, busy, 100.0) == 120.0
    assert begins_at(one, replace(busy, oldest_at=91.0), 100.0) == 100.0


def with_pauses(one: Member, *pauses: float) -> Member:
    for pause_s in pauses:
        one = replace(one, pauses=with_pause(one.pauses, pause_s))
    return one


IDLE = Member("v", "awake", awake_bytes=60, idle_since=99.0, **SECONDS)
WAITS = Member("a", "asleep", awake_bytes=60, waiting=1, waited_s=0.0, oldest_at=100.0, **SECONDS)
"""The return of `v` takes 3 s: one falls asleep, and it wakes."""


@pytest.mark.parametrize(
    ("pauses", "at"),
    [
        ((), 100.0),  # nothing says that work is about to come
        ((0.4,) * 9, 100.0),  # it has been without work for longer than ever
        ((0.9, 1800.0), 100.0),  # nor is it about to come where pauses as long as this are hours
        ((2.0,) * 9, 101.0),  # two seconds of its pause are over
        ((3.9,) * 9, 103.0),  # as long as they are, the wait has cost as much as the return by then
        ((3.9, 3.9, 1800.0), 100.0 + 3.0 * 1.71 / 2.71),  # two of three, the later one counts more
    ],
    ids=["none", "shorter", "far longer", "two seconds", "longer", "mixed"],
)
def test_one_without_work_is_protected_while_its_pauses_say_that_it_is_in_use(
    pauses: tuple[float, ...], at: float
) -> None:
    assert begins_at(WAITS, with_pauses(IDLE, *pauses), 100.0) == pytest.approx(at, abs=1e-5)


@given(
    st.lists(st.floats(0, 5000), max_size=30),
    st.floats(0, 3000),
    st.floats(0.05, 60),
    st.floats(0.05, 60),
    st.integers(1, 50),
)
def test_pauses_put_a_change_off_for_no_longer_than_the_return_costs(
    pauses: list[float], idle_s: float, sleep_s: float, wake_s: float, waiting: int
) -> None:
    """Pauses delay a change for no longer than the return costs, and the policy acts as it has
    predicted.
    """
    victim = replace(IDLE, since=-1e6, idle_since=100.0 - idle_s, wake_s=wake_s)
    victim = with_pauses(victim, *pauses)
    one = replace(WAITS, waiting=waiting, sleep_s=sleep_s)
    at = begins_at(one, victim, 100.0)
    assert 100.0 <= at <= 100.0 + (sleep_s + wake_s) / waiting + 1e-5


def test_pauses_in_which_it_lost_its_place_and_another_was_served_do_not_count() -> None:
    watch = PauseWatch()

    def see(at: float, name: str, state: MemberState, *, has_work: bool = False) -> None:
        watch.see(name, state, has_work=has_work, uses=0, now=at)

    see(0.0, "a", "awake", has_work=True)
    see(1.0, "a", "awake")
    see(3.0, "a", "awake", has_work=True)  # awake all the while
    expected = with_pause((), 2.0)
    assert watch.counts("a") == expected
    see(4.0, "a", "awake")
    see(4.5, "b", "awake", has_work=True)
    see(5.0, "b", "awake")
    see(9.0, "a", "awake", has_work=True)  # another was served beside it
    expected = with_pause(expected, 5.0)
    assert watch.counts("a") == expected
    see(9.5, "a", "falling asleep", has_work=True)
    see(10.0, "a", "falling asleep")
    see(10.5, "a", "asleep")
    see(11.0, "a", "asleep", has_work=True)  # its place is taken, and nobody was served yet
    expected = with_pause(expected, 1.0)
    assert watch.counts("a") == expected
    see(14.0, "a", "awake", has_work=True)
    see(15.0, "a", "awake")
    see(15.5, "a", "asleep")
    see(16.0, "b", "awake", has_work=True)
    see(17.0, "b", "awake")
    see(18.0, "a", "asleep", has_work=True)
    assert watch.counts("a") == expected
    watch.forget("a")
    assert watch.counts("a") == ()


def test_what_was_not_served_begins_no_pause() -> None:
    """A request that waited in vain comes again: that is no use of the model, and no pause of it.
    Nor was the other one served meanwhile.
    """
    watch = PauseWatch()

    def see(at: float, name: str, state: MemberState, *, has_work: bool = False) -> None:
        watch.see(name, state, has_work=has_work, uses=0, now=at)

    see(0.0, "a", "awake", has_work=True)
    see(1.0, "a", "awake")
    see(1.5, "a", "falling asleep")
    for begin, state in ((2.0, "asleep"), (4.0, "waking")):
        see(begin, "b", state, has_work=True)  # type: ignore[arg-type]
        see(begin + 1.0, "b", state)  # type: ignore[arg-type]
    assert watch.counts("b") == ()
    see(6.0, "a", "asleep", has_work=True)
    assert watch.counts("a") == with_pause((), 5.0)


@pytest.mark.parametrize("is_told", [False, True], ids=["never told", "told late"])
def test_work_that_is_soon_done_is_seen_too(is_told: bool) -> None:
    """A gateway says late that there is some, or has nothing to say when it looks."""
    watch = PauseWatch()

    def see(at: float, uses: int, *, has_work: bool = False, state: MemberState = "awake") -> None:
        watch.see("a", state, has_work=has_work, uses=uses, now=at)

    for number in range(1, 4):
        at = 2.0 * number
        see(at, number)
        if is_told:
            see(at + 0.2, number, has_work=True)
            see(at + 0.5, number)
        see(at + 0.7, number)
    pause_s = 1.5 if is_told else 2.0
    expected = with_pause(with_pause((), pause_s), pause_s)
    assert watch.counts("a") == expected
    see(7.0, 3, state="asleep")
    see(8.5, 3, has_work=True, state="asleep")  # a request waits for its wake
    expected = with_pause(expected, 2.0 if is_told else 2.5)
    assert watch.counts("a") == expected
    see(9.0, 4, has_work=True)
    assert watch.counts("a") == expected


def test_old_pauses_count_less() -> None:
    """An agent has ended, and people ask now."""
    counts = with_pauses(IDLE, *[2.5] * 50, *[40.0] * 20).pauses
    assert share_ending(counts, 2.1, 10.0) < 0.2
    assert share_ending(counts, 2.1, 60.0) == 1.0


def test_a_worker_whose_sleep_failed_is_nobodys_place_until_its_pause_ends() -> None:
    idle = Member("v", "awake", awake_bytes=60, idle_since=0.0, must_wait_until=105.0, **SECONDS)
    one = Member("a", "asleep", awake_bytes=60, waiting=9, waited_s=90.0, oldest_at=90.0, **SECONDS)
    assert begins_at(one, idle, 100.0) == 105.0


def test_only_the_time_in_which_it_slept_counts_for_its_change() -> None:
    """Only the time in which the worker slept counts for its change: its request is older than its
    sleep, and before that it had its turn.
    """
    busy = Member("v", "awake", awake_bytes=60, running=2, oldest_at=99.5, **SECONDS)
    one = Member(
        "a", "asleep", awake_bytes=60, waiting=1, waited_s=90.0, oldest_at=10.0, since=99.0,
        **SECONDS,
    )  # fmt: skip
    assert begins_at(one, busy, 100.0) == 111.0  # two requests times a round, less the second


def test_what_gave_up_holds_nothing_and_wakes_not() -> None:
    gone = Member("x", "away", awake_bytes=60, waiting=9, waited_s=90.0, oldest_at=0.0)
    one = Member("a", "asleep", awake_bytes=60, waiting=1, waited_s=1.0, oldest_at=99.0)
    assert TurnPolicy().decide([gone, one], SharedCard(80), 100.0).wake == ("a",)
    assert TurnPolicy().decide([gone], SharedCard(80), 100.0).wake == ()


def test_what_a_sleeper_keeps_on_the_card_is_no_part_of_its_need() -> None:
    always = Member("c", "awake", awake_bytes=20, is_always=True)
    one = Member("a", "asleep", awake_bytes=60, asleep_bytes=10, waiting=1, oldest_at=9.0)
    assert TurnPolicy().decide([always, one], SharedCard(80), 10.0).wake == ("a",)
    assert not TurnPolicy().decide([always, one], SharedCard(79), 10.0).wake


def test_the_next_decision_is_due_at_the_first_of_all_times() -> None:
    members = [
        Member("a", "awake", awake_bytes=1, idle_since=0.0, idle_s=103.0),
        Member("b", "asleep", awake_bytes=1, waiting=1, must_wait_until=105.0),
        Member("c", "awake", awake_bytes=1, idle_since=0.0, idle_s=110.0),
    ]
    assert TurnPolicy().decide(members, SharedCard(80), 100.0).next_at == 103.0
