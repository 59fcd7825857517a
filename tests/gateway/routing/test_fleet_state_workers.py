"""Joining, leaving, block events and what models look like meanwhile."""

import gc
from collections import deque
from collections.abc import Iterator, Sized
from types import FunctionType, ModuleType

import msgspec
import pytest

from config import ModelConfig
from gateway.routing.effects import (
    Accept,
    AskFiles,
    AskSnapshot,
    Moved,
    Notice,
    Refuse,
    RefuseWorker,
)
from gateway.routing.fleet_state import FleetState
from gateway.telemetry.fleet_events import (
    EngineFault,
    SpeedBack,
    SpeedLost,
    WorkerBack,
    WorkerLost,
    WorkerStarting,
)
from protocol.messages import (
    ASLEEP,
    BACK_SOON,
    TAKES_TURNS,
    BlocksDropped,
    BlocksSnapshot,
    Bye,
    EngineFacts,
    Fault,
    Progress,
    Register,
    Residency,
    SpeedLoss,
)
from tests.fakes.fleet import (
    W1,
    W2,
    W3,
    chain,
    dispatch,
    facts,
    hello,
    load,
    only,
    placed,
    request,
    stored,
)

LOSS = SpeedLoss(1, ("answers at 40.0 tokens/s",), 2)
GIVES_UP = "exit code 1; stopped after 5 starts"


def test_a_ready_worker_is_accepted_and_asked_for_what_is_missing() -> None:
    """`Accept` comes first; blocks and files are asked for."""
    fleet = dispatch()
    effects = fleet.register(W1, hello("w1", facts()), 0.0)
    assert effects[:3] == (Accept(W1), AskSnapshot(W1), AskFiles(W1, b"f" * 16))
    assert fleet.ask_files("m") == (AskFiles(W1, b"f" * 16),)
    assert fleet.ask_files("nobody") == ()


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (hello("w2", version=99), "protocol 99"),
        (hello("w1"), "another live worker"),
        (hello("two words"), "name"),
        (hello(""), "name"),
        (hello("w2", models=()), "no model"),
        (hello("w2", models=("alias",)), "alias of `m`"),
        (hello("w2", models=("a\nb",)), "model name"),
        (hello("w2", models=tuple(map(str, range(65)))), "more than 64"),
        (hello("w2", facts(files=b"g" * 16)), "tokenizer and template files differ"),
        (hello("w2", facts(block_size=16)), "block size is 16"),
        (hello("w2", facts(max_seqs=0)), "no sequences"),
        (hello("w2", facts(context_length=0)), "no window"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_with_the_reason(
    message: Register, word: str
) -> None:
    """The fleet stays as it was."""
    fleet = dispatch((W1, facts()))
    effects = fleet.register(W2, message, 0.0)
    assert word in only(effects, RefuseWorker).reason
    assert len(effects) == 1
    assert [worker.name for worker in fleet.workers()] == ["w1"]


def test_other_models_may_have_other_files() -> None:
    """Files and block sizes must agree under one model name only."""
    fleet = dispatch((W1, facts()))
    other = hello("w2", facts(files=b"g" * 16, block_size=16), models=("n",))
    assert fleet.register(W2, other, 0.0)[0] == Accept(W2)


def test_a_worker_that_no_longer_fits_leaves() -> None:
    """A registration that is refused ends the earlier one; its tickets move."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    fleet.tickets.ask(request(1, prefer=W2), 0.0)
    effects = fleet.register(W2, hello("w2", facts(files=b"g" * 16)), 1.0)
    assert isinstance(effects[0], RefuseWorker)
    assert only(effects, Moved).tickets == (1,)
    assert fleet.statistics().workers == 1


def test_names_are_free_again_when_the_holder_is_lost() -> None:
    """A restarted supervisor comes with a new identity and its old name."""
    fleet = dispatch((W1, facts()))
    fleet.lost(W1, 1.0)
    assert fleet.register(W2, hello("w1", facts()), 1.1)[0] == Accept(W2)


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("engine", [None, facts()])
def test_a_new_registration_moves_the_tickets(epoch: int, engine: EngineFacts | None) -> None:
    """A worker that registers again has dropped its sequences, whatever its engine did."""
    fleet = dispatch((W1, facts()))
    fleet.tickets.ask(request(1), 0.0)
    effects = fleet.register(W1, hello("w1", engine, epoch=epoch), 1.0)
    assert effects[0] == Accept(W1)
    assert only(effects, Moved).tickets == (1,)
    assert fleet.workers()[0].running == 0


def test_an_engine_fault_moves_tickets_and_forgets_blocks() -> None:
    """A fault of the present epoch moves tickets and forgets blocks; the worker counts as starting
    and its next engine begins empty.
    """
    fleet, prompt = dispatch((W1, facts())), chain(("a", 4))
    fleet.heard(W1, stored(1, prompt), 0.0)
    fleet.tickets.ask(request(1), 0.0)
    assert fleet.heard(W1, Fault("w1", 0, "old", 1), 1.0) == ()
    effects = fleet.heard(W1, Fault("w1", 1, "killed", 137), 1.0)
    assert only(effects, Moved).tickets == (1,)
    assert only(effects, Notice).event == EngineFault(
        "w1", 1, "unknown", 137, is_final=False, cause="killed"
    )
    assert fleet.tickets.ask(request(2), 1.0) == ()
    fleet.heard(W1, stored(2, prompt), 1.0)
    assert fleet.workers()[0].cached_blocks == 0
    assert fleet.statistics().stale_messages == 2
    fleet.register(W1, hello("w1", epoch=2), 1.0)
    assert placed(fleet.register(W1, hello("w1", facts(), epoch=2), 2.0)) == {2: W1}


def test_a_start_is_told_when_it_begins() -> None:
    """Behind a death the supervisor waits for up to 30 s; then the first progress is told, once."""
    fleet = dispatch()
    began = fleet.register(W1, hello("w1"), 0.0)
    assert only(began, Notice).event == WorkerStarting("w1", 1)
    assert fleet.heard(W1, Progress(1, "weights", 0.5, ""), 1.0) == ()
    fleet.heard(W1, Fault("w1", 1, "killed", 137), 1.0)
    for now in (1.0, 5.0):  # it also registers again when its file has changed
        assert not [one for one in fleet.register(W1, hello("w1", epoch=2), now) if _is_told(one)]
    assert fleet.heard(W1, Progress(1, "weights", 0.6, ""), 20.0) == ()
    begins = fleet.heard(W1, Progress(2, "start", 0.0, ""), 31.0)
    assert only(begins, Notice).event == WorkerStarting("w1", 2)
    assert fleet.heard(W1, Progress(2, "weights", 0.5, ""), 32.0) == ()
    # An engine that is replaced without a fault has no pause before it.
    fleet.register(W1, hello("w1", facts(), epoch=2), 33.0)
    again = fleet.register(W1, hello("w1", epoch=3), 34.0)
    assert [one.event for one in again if isinstance(one, Notice)] == [WorkerStarting("w1", 3)]


def _is_told(effect: object) -> bool:
    return isinstance(effect, Notice) and isinstance(effect.event, WorkerStarting)


def test_a_worker_that_starts_no_more_is_not_waited_for() -> None:
    """Requests that wait for a worker that starts no more are refused at once, and so are later
    ones; a resumed answer ends with words that make clients retry.
    """
    fleet = dispatch((W1, facts()))
    fleet.heard(W1, Fault("w1", 1, "killed", 137), 0.0)
    fleet.tickets.ask(request(1), 0.0)
    fleet.tickets.ask(request(2, resumed=True), 0.0)
    effects = fleet.heard(W1, Fault("w1", 1, GIVES_UP, 1, is_final=True), 1.0)
    effects += fleet.tickets.ask(request(3, resumed=True), 1.1)
    refused = {e.ticket: e.error.status for e in effects if isinstance(e, Refuse)}
    assert refused == {1: 503, 2: 502, 3: 502}
    view = fleet.fleet.find("m")
    assert view is not None
    assert (view.state, view.queued) == ("down", 0)
    assert "stopped after" in fleet.workers()[0].fault


def test_errors_do_not_say_why_an_engine_died() -> None:
    """Errors for clients leave out why an engine died: the cause may hold paths, or words on which
    clients act. Operators get the event.
    """
    fleet = dispatch((W1, facts()))
    fleet.heard(W1, Fault("w1", 1, "/srv/secret/engine: not found", 127), 0.0)
    fleet.tickets.ask(request(1), 0.0)
    refused = only(fleet.tick(1e4), Refuse).error
    assert refused.status == 503
    assert refused.message == "The workers of m are still starting."
    fleet.tickets.ask(request(2), 1e4)
    fleet.heard(W1, Progress(1, "loading weights", 0.5), 1e4)
    assert "(w1: loading weights 50%)" in only(fleet.tick(2e4), Refuse).error.message


def test_bye_is_leaving() -> None:
    """A worker that leaves on purpose is gone at once."""
    fleet = dispatch((W1, facts()))
    effects = fleet.heard(W1, Bye("stopped by its operator"), 0.0)
    assert only(effects, Notice).event == WorkerLost("w1", "left: stopped by its operator")
    assert fleet.statistics().workers == 0
    assert fleet.lost(W1, 0.1) == ()


@pytest.mark.parametrize("reason", sorted(BACK_SOON))
def test_a_worker_that_is_back_in_a_moment_is_waited_for(reason: str) -> None:
    """A worker that will register again with its next frame is waited for: requests of that moment
    are not refused.
    """
    for said, is_awaited in ((reason, True), ("stopped by its operator", False)):
        fleet = _awaiting()
        fleet.register(W1, hello("w1", facts()), 0.0)
        fleet.heard(W1, Bye(said), 10.0)
        assert fleet.is_awaited("m", 10.1) == is_awaited


def test_a_gap_asks_for_a_snapshot_once() -> None:
    """The worker's part is empty until the snapshot comes; others keep theirs."""
    fleet, prompt = dispatch((W1, facts()), (W2, facts())), chain(("a", 9))
    fleet.heard(W1, stored(1, prompt), 0.0)
    fleet.heard(W2, stored(1, prompt[:5]), 0.0)
    effects = fleet.heard(W1, BlocksDropped(seq=3, digests=prompt[8]), 0.0)
    assert only(effects, AskSnapshot) == AskSnapshot(W1)
    assert fleet.heard(W1, stored(4, prompt), 0.0) == ()
    assert placed(fleet.tickets.ask(request(1, prompt), 0.0)) == {1: W2}
    fleet.heard(W1, BlocksSnapshot(seq=4, digests=b"".join(prompt)), 0.0)
    assert [worker.cached_blocks for worker in fleet.workers()] == [9, 5]
    assert fleet.statistics().index_gaps == 1


def test_an_overdue_snapshot_is_asked_again() -> None:
    """The tick repeats the question."""
    fleet = dispatch()
    fleet.register(W1, hello("w1", facts()), 0.0)
    assert fleet.tick(4.9) == ()
    assert fleet.tick(5.0) == (AskSnapshot(W1),)


def test_foreign_and_stale_messages_are_counted() -> None:
    """Nothing that an unknown worker or an old engine says changes the fleet."""
    fleet = dispatch((W1, facts()))
    for worker_id, message in (
        (W3, load()),
        (W3, stored(1, chain(("a", 1)))),
        (W1, load(epoch=7)),
        (W1, Progress(epoch=1, phase="late", fraction=0.1)),
        (W1, Fault("other name", 1, "?", 1)),
        (W1, BlocksSnapshot(seq=3, digests=b"torn")),
    ):
        assert fleet.heard(worker_id, message, 0.0) == ()
    assert fleet.statistics().stale_messages == 6
    assert fleet.statistics().ready_workers == 1


def test_the_window_of_a_model_is_the_least_of_its_ready_workers() -> None:
    """The window of a model is the least of its ready workers, else the last known one, else the
    configured one.
    """
    fleet = FleetState((ModelConfig(name="m", context_length=100),), max_queue=1, resume_wait_s=1.0)

    def window() -> int | None:
        view = fleet.fleet.find("m")
        return view.context_length if view is not None else None

    windows = [window()]
    fleet.register(W1, hello("w1", facts(context_length=9000)), 0.0)
    fleet.register(W2, hello("w2", facts(context_length=8000)), 0.0)
    windows.append(window())
    fleet.lost(W2, 1.0)
    windows.append(window())
    fleet.lost(W1, 1.0)
    windows.append(window())
    assert windows == [100, 8000, 9000, 9000]


def test_workers_bring_models_that_are_not_configured() -> None:
    """A model that only a worker names is listed after the configured ones, while a worker is
    expected back.
    """
    fleet = _awaiting()
    fleet.register(W1, hello("w1", facts()), 0.0)
    fleet.register(W2, hello("w2", facts(files=b"g" * 16), models=("n",)), 0.0)
    assert placed(fleet.tickets.ask(request(1, model="n"), 0.0)) == {1: W2}
    fleet.tick(100.0)
    fleet.lost(W2, 100.0)
    fleet.tick(100.1)
    fleet.tick(103.0)
    assert [(view.name, view.state) for view in fleet.models()] == [("m", "ready"), ("n", "down")]
    assert only(fleet.tickets.ask(request(2, model="n"), 103.0), Refuse).error.status == 503
    fleet.register(W3, hello("w2", facts(files=b"h" * 16), models=("n",)), 103.0)
    fleet.tick(103.2)
    assert [view.state for view in fleet.models()] == ["ready", "ready"]
    fleet.heard(W3, Bye("its operator has had enough"), 104.0)
    fleet.lost(W1, 104.0)
    fleet.tick(104.1)
    fleet.tick(107.2)
    assert [(view.name, view.state) for view in fleet.models()] == [("m", "down")]
    assert only(fleet.tickets.ask(request(3, model="n"), 107.2), Refuse).error.status == 404
    fleet.register(W2, hello("w2", facts(), models=("n",)), 108.0)
    assert placed(fleet.tickets.ask(request(4, model="n"), 108.0)) == {4: W2}


def test_a_model_for_which_a_stream_waits_is_kept() -> None:
    """A model for which a stream waits is kept for the whole patience of the stream, which a worker
    that comes late can still use.
    """
    fleet = _awaiting()
    fleet.register(W1, hello("w1", facts(), models=("n",)), 0.0)
    fleet.lost(W1, 1.0)
    for ticket in (1, 2):
        fleet.tickets.ask(request(ticket, model="n", resumed=True), 1.0)
    for now in (1.1, 60.0, 100.0):
        assert fleet.tick(now) == ()
    fleet.tickets.release(1, 100.0)
    assert placed(fleet.register(W2, hello("w1", facts(), models=("n",)), 110.0)) == {2: W2}
    fleet.lost(W2, 111.0)
    fleet.tickets.ask(request(3, model="n", resumed=True), 111.0)
    assert only(fleet.tick(231.1), Refuse).error.status == 502
    assert len(fleet.models()) == 2
    fleet.tick(231.2)
    fleet.tick(234.3)
    assert [view.name for view in fleet.models()] == ["m"]


def test_a_worker_of_two_models_has_one_set_of_places() -> None:
    """A place freed by one model serves the queue of the other."""
    fleet = FleetState((), max_queue=8, resume_wait_s=1.0)
    fleet.register(W1, hello("w1", facts(max_seqs=1), models=("m", "n")), 0.0)
    fleet.tickets.ask(request(1, model="m"), 0.0)
    assert fleet.tickets.ask(request(2, model="n"), 0.0) == ()
    assert placed(fleet.tickets.release(1, 1.0)) == {2: W1}


def test_an_alias_is_another_name_of_the_model() -> None:
    """An alias is looked up as another name of the model, and not listed as a model."""
    fleet = dispatch((W1, facts()))
    assert fleet.fleet.find("alias") == fleet.fleet.find("m")
    assert fleet.fleet.find("other") is None
    assert len(fleet.models()) == 1


def _awaiting() -> FleetState:
    return FleetState((ModelConfig(name="m"),), max_queue=8, resume_wait_s=120.0, rejoin_s=3.0)


def test_a_request_waits_for_workers_that_a_new_gateway_does_not_know_yet() -> None:
    """Right after the start requests are held for workers to dial in, and refused if none does."""
    fleet = _awaiting()
    fleet.start(10.0)
    assert fleet.tickets.ask(request(1), 10.5) == ()
    assert placed(fleet.register(W1, hello("w1", facts()), 11.0)) == {1: W1}
    lonely = _awaiting()
    lonely.start(10.0)
    assert lonely.tickets.ask(request(1), 10.5) == ()
    assert lonely.tick(12.9) == ()
    assert only(lonely.tick(13.1), Refuse).error.status == 503


def test_a_request_waits_for_a_worker_whose_link_has_vanished() -> None:
    """A lost link is mostly a blip: requests wait a little before nobody serves the model."""
    fleet = _awaiting()
    fleet.register(W1, hello("w1", facts()), 0.0)
    fleet.lost(W1, 100.0)
    assert fleet.tickets.ask(request(1), 100.5) == ()
    assert placed(fleet.register(W2, hello("w1", facts()), 101.0)) == {1: W2}
    fleet.lost(W2, 200.0)
    assert only(fleet.tickets.ask(request(2), 203.1), Refuse).error.status == 503


def test_the_window_is_what_the_cache_can_hold() -> None:
    """An engine refuses prompts over its whole cache, however long its model's window is."""
    fleet = dispatch((W1, facts(context_length=131_072, kv_tokens=40_000)))
    view = fleet.fleet.find("m")
    assert view is not None
    assert view.context_length == 40_000


def test_a_view_follows_every_change() -> None:
    """What clients see of a model is never older than the last event."""
    fleet = dispatch((W1, facts(max_seqs=1)), (W2, facts(max_seqs=1)))

    def seen() -> tuple[str, int, int]:
        view = fleet.fleet.find("m")
        assert view is not None
        return view.state, view.ready_workers, view.queued

    assert seen() == ("ready", 2, 0)
    for ticket in (1, 2, 3):
        fleet.tickets.ask(request(ticket), 0.0)
    assert seen() == ("ready", 2, 1)
    fleet.tickets.busy(1, 0.0, "draining")
    assert seen() == ("ready", 1, 2)
    fleet.heard(W1, Fault("w1", 1, "killed", 137), 0.0)
    fleet.heard(W2, Fault("w2", 1, "killed", 137), 0.0)
    assert seen()[:2] == ("starting", 0)
    fleet.lost(W1, 0.0)
    fleet.lost(W2, 0.0)
    assert seen()[:2] == ("down", 0)
    fleet.register(W3, hello("w3", facts()), 1.0)
    assert seen()[:2] == ("ready", 1)


def test_a_worker_that_is_here_is_remembered_whatever_names_come_and_go() -> None:
    """In a fleet whose workers have new names each time, those that stay keep their record."""
    fleet = dispatch((W1, facts()))
    for number in range(2000):
        fleet.register(W2, hello(f"pod-{number}", facts()), 0.0)
        fleet.lost(W2, 0.0)
    assert len(fleet.fleet._records) <= 1024
    fleet.lost(W1, 0.0)
    notices = [e for e in fleet.register(W1, hello("w1", facts()), 0.0) if isinstance(e, Notice)]
    assert isinstance(notices[-1].event, WorkerBack)


def tables_in(root: object) -> Iterator[Sized]:
    """All tables that `root` reaches, but for what belongs to a class or a module."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | set | deque):
            yield one
        for each in gc.get_referents(one):
            if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType):
                seen.add(id(each))
                waiting.append(each)


def test_what_is_kept_of_names_that_come_and_go_is_bounded() -> None:
    """The memory for names that come and go is bounded, also for workers that take turns, and for
    slow ones that never report that they are well again.
    """
    fleet = dispatch()
    for number in range(2000):
        plain = hello(f"pod-{number}", facts())
        asleep = msgspec.structs.replace(plain, capabilities=(TAKES_TURNS, ASLEEP))
        fleet.register(W2, asleep, 0.0)
        fleet.heard(W2, Residency(1, "waking"), 1.0)
        fleet.heard(W2, Residency(1, "awake"), 2.0)
        assert fleet.heard(W2, SpeedLoss(1, LOSS.figures), 3.0)
        fleet.lost(W2, 4.0)
    assert max(map(len, tables_in(fleet))) <= 1024


def test_a_speed_loss_is_said_once() -> None:
    """A speed loss is reported once, also if the worker's link was gone meanwhile; one of another
    epoch is stale.
    """
    fleet = dispatch()
    fleet.register(W1, hello("w1", facts()), 0.0)
    lost = Notice(SpeedLost("w1", LOSS.figures, 2))
    assert fleet.heard(W1, LOSS, 1.0) == (lost,)
    assert fleet.heard(W1, SpeedLoss(1, ("prompts too",)), 2.0) == ()
    fleet.lost(W1, 3.0)
    fleet.register(W2, hello("w1", facts()), 4.0)
    assert fleet.heard(W2, LOSS, 5.0) == ()
    assert fleet.heard(W2, SpeedLoss(7, ("x",)), 5.0) == ()
    assert fleet.heard(W2, SpeedLoss(1, ()), 6.0) == (Notice(SpeedBack("w1")),)
    assert fleet.heard(W2, SpeedLoss(1, ()), 7.0) == ()
