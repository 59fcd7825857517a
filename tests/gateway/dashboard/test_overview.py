"""From the gateway's plain data to the dashboard's rows."""

from typing import Any

import msgspec
import pytest

from config import FallbackConfig
from gateway.api import Usage
from gateway.dashboard import Overview, OverviewSource, condition_of, event_row, overview_of
from gateway.dashboard.overview import MAX_REQUESTS, away_since
from gateway.routing import QueuePosition, with_refusals
from gateway.routing.worker import Worker
from gateway.telemetry import AttemptTrace, EventFeed, FallbackOn, RequestTrace, WorkerLost
from protocol.messages import CacheUse, Load, Progress
from tests.fakes.asgi import model_view
from tests.fakes.fleet import W1, W2, facts, hello

LOAD = Load(
    epoch=1, running=3, waiting=1, free_blocks=100, num_blocks=400, steps=9, preemptions=0,
    step_ms=12.345, prefill_tokens_per_s=8123.4, places=8,
)  # fmt: skip
CLOUD = (FallbackConfig(provider="sky", model="sky-large"),)


def source(**fields: Any) -> OverviewSource:
    """Taken at 100 s of the clock of requests."""
    return OverviewSource("1", None, unix_time=1e9, started_at=9e8, now=100.0, **fields)


def request(name: str, *, received_at: float = 90.0, **fields: Any) -> RequestTrace:
    return RequestTrace(id=name, received_at=received_at, **fields)


def begin(trace: RequestTrace, server: str, at: float, **fields: Any) -> AttemptTrace:
    attempt = AttemptTrace(server, at, at, "why", **fields)
    trace.turn.begin(attempt)
    return attempt


def worker(name: str = "gpu0", load: Load | None = LOAD) -> Worker:
    one = Worker(W1, hello(name, facts()), 0.0)
    if load is not None:
        one.report(load, 1.0)
    return one


def test_an_engine_that_was_never_there_is_named_with_its_address() -> None:
    """An attached engine at a wrong port has no fault yet: its worker waits for it."""
    one = Worker(W1, hello("gpu0"), 0.0)
    detail = "http://127.0.0.1:8001 refused the connection, for 5 s"
    one.progress = Progress(1, "attach", 0.0, detail)
    (row,) = overview_of(source(workers=[one.view(0)])).workers
    assert row.fault == detail
    one.progress = Progress(1, "weights", 0.5, "shard 3")
    (row,) = overview_of(source(workers=[one.view(0)])).workers
    assert row.fault == ""


def test_phases_follow_from_what_has_happened() -> None:
    """Each request is in exactly one, and the next thing that happens moves it on."""
    trace = request("a", number=1)

    def phase(**fields: Any) -> tuple[str, int, str]:
        (row,) = overview_of(source(open=[trace], **fields)).requests
        return row.phase, row.position, row.server

    assert phase() == ("preparing", 0, "")
    trace.turn.ticket = 7
    waits = {7: QueuePosition(3, 91.0, 12.34)}
    assert phase(positions=waits) == ("queued", 3, "")
    assert overview_of(source(open=[trace], positions=waits)).requests[0].wait_s == 12.3
    attempt = begin(trace, "gpu0", 92.0)
    assert phase() == ("prefill", 0, "gpu0")
    attempt.first_at = 93.0
    assert phase() == ("decode", 0, "gpu0")
    attempt.fail(94.0, "its engine died", 5)
    trace.turn.ticket = 8
    assert phase(positions={8: QueuePosition(1, 94.0)}) == ("queued", 1, "gpu0")
    begin(trace, "sky", 95.0, is_cloud=True)
    assert phase() == ("cloud", 0, "sky")
    trace.ended_at, trace.status, trace.turn.num_open = 96.0, 499, 1
    assert phase()[0] == "detached"
    trace.turn.num_open = 0
    assert overview_of(source(recent=[trace])).recent[0].phase == "ended"


def test_a_request_shows_what_is_known_so_far() -> None:
    """An open request shows the cached tokens that the index expects and the tokens seen so far; an
    ended one shows its usage.
    """

    class Output:
        num_tokens = 40

    trace = request("a", number=5, key="alice", client="hermes", api="chat", first_at=91.5)
    trace.turn.model, trace.turn.prompt_tokens = "alpha", 1000
    trace.turn.outputs.append(Output())
    begin(trace, "gpu0", 90.5).cached_tokens = 960
    (row,) = overview_of(source(open=[trace], rates={5: 33.33})).requests
    assert (row.model, row.key, row.client) == ("alpha", "alice", "hermes")
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (1000, 960, 40)
    assert (row.age_s, row.first_s, row.tokens_per_s) == (10.0, 1.5, 33.3)
    trace.usage, trace.ended_at = Usage(1000, 992, 170), 110.0
    trace.status = 200
    (row,) = overview_of(source(recent=[trace])).recent
    assert (row.cached_tokens, row.output_tokens, row.status) == (992, 170, 200)
    assert row.tokens_per_s == round(170 / 18.5, 1)


def test_the_oldest_requests_are_shown_and_all_are_counted() -> None:
    """A page cannot show thousands."""
    traces = [request(str(age), received_at=100.0 - age) for age in range(MAX_REQUESTS + 20)]
    shown = overview_of(source(open=traces))
    assert len(shown.requests) == MAX_REQUESTS
    assert shown.totals.open == MAX_REQUESTS + 20
    assert shown.requests[0].age_s == MAX_REQUESTS + 19


def test_a_worker_s_load_is_shown_beside_its_limits() -> None:
    """Bars need both ends; its speed is what this gateway's requests get from it."""
    traces = [request(str(number), number=number) for number in (1, 2, 3)]
    for trace, server in zip(traces, ("gpu0", "gpu0", "other"), strict=True):
        begin(trace, server, 95.0)
    views = [worker().view(77)]
    (row,) = overview_of(
        source(workers=views, open=traces, rates={1: 20.0, 2: 30.5, 3: 99.0})
    ).workers
    assert (row.name, row.state, row.running, row.waiting) == ("gpu0", "ready", 3, 1)
    assert (row.held_blocks, row.num_blocks, row.cached_blocks) == (300, 400, 77)
    assert (row.step_ms, row.prefill_tokens_per_s) == (12.35, 8123)
    assert row.tokens_per_s == 50.5


def test_a_worker_s_hits_are_shown_by_tier() -> None:
    """Without a host cache an engine does not count them."""
    cache = CacheUse(
        4096, 2048, 512, 256, hit_tokens=900, loaded_tokens=300, prompt_tokens=1000,
        load_bytes_per_s=2.5e10,
    )  # fmt: skip
    load = msgspec.structs.replace(LOAD, cache=cache)
    (row,) = overview_of(source(workers=[worker(load=load).view(77, 70)])).workers
    assert (row.cached_blocks, row.host_blocks, row.prompt_tokens) == (77, 70, 1000)
    assert (row.host_bytes, row.host_held_bytes) == (4096, 2048)
    assert (row.stored_bytes, row.loaded_bytes, row.load_bytes_per_s) == (512, 256, 2.5e10)
    for given, expected in ((load, (900, 300)), (LOAD, (0, 0)), (None, (0, 0))):
        (row,) = overview_of(source(workers=[worker(load=given).view(0)])).workers
        assert (row.hit_tokens, row.loaded_tokens) == expected


def test_a_worker_that_starts_shows_how_far_it_is() -> None:
    """Bars of nothing would look like an idle worker."""
    one = Worker(W2, hello("gpu1"), 0.0)
    one.progress = Progress(1, "weights", 0.4567)
    (row,) = overview_of(source(workers=[one.view(0)])).workers
    assert (row.state, row.phase, row.fraction) == ("starting", "weights", 0.457)
    assert (row.places, row.num_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("models", "condition"),
    [
        ([model_view()], "well"),
        ([model_view(), model_view("beta", state="starting")], "starting"),
        ([model_view(), model_view("beta", state="down")], "down"),
        ([model_view(state="down", fallback=CLOUD)], "cloud"),
        ([model_view(is_fallback_on=True, fallback=CLOUD)], "cloud"),
    ],
)
def test_the_worst_model_decides_how_the_whole_is(models: list[Any], condition: str) -> None:
    """The state of the whole is that of the worst model, and the sentence names this model."""
    found, words = condition_of(models, [worker().view(0)], 0)
    assert found == condition
    bad = [model.name for model in models if model.state != "ready" or model.is_away]
    assert all(name in words for name in bad)


def test_a_model_that_providers_alone_serve_is_no_trouble() -> None:
    """A model that only providers serve is no trouble: its row says that the cloud answers."""
    alone = model_view("far", state="down", fallback=CLOUD, is_providers_alone=True)
    assert condition_of([model_view(), alone], [worker().view(0)], 0)[0] == "well"
    assert condition_of([alone], [], 0) == ("well", "Providers answer for all models.")
    (row,) = overview_of(source(models=[alone])).models
    assert row.is_away


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (
            [model_view(state="down", block_size=None, fallback=CLOUD)],
            "no worker has joined for it",
        ),
        ([model_view(state="down", fallback=CLOUD)], "its workers are not ready"),
        (
            [
                model_view(state="down", fallback=CLOUD),
                model_view("beta", state="down", block_size=None, fallback=CLOUD),
            ],
            "their workers are not ready",
        ),
    ],
)
def test_a_model_of_providers_alone_is_told_from_one_whose_workers_are_gone(
    models: list[Any], why: str
) -> None:
    condition, words = condition_of(models, [worker().view(0)], 0)
    assert condition == "cloud"
    assert f": {why}" in words


@pytest.mark.parametrize("refuses", [False, True])
def test_a_spending_limit_that_is_reached_is_said(refuses: bool) -> None:
    """No provider answers then, whatever the configuration says: not in the sentence, the row of
    the model or the time since when.
    """
    view = model_view(state="down", fallback=CLOUD)
    local = model_view("beta", fallback=CLOUD)
    models = with_refusals([view, local], lambda _: refuses)
    condition, words = condition_of(models, [worker().view(0)], 0)
    assert condition == ("down" if refuses else "cloud")
    assert ("A spending limit keeps the providers of alpha" in words) == refuses
    row, other = overview_of(source(models=models, away_since={"alpha": 1.0})).models
    assert (row.is_away, row.since) == ((False, None) if refuses else (True, 1.0))
    assert (other.state, other.is_away) == ("ready", False)


def test_requests_that_wait_are_no_failure() -> None:
    """Requests that wait are no failure, but the page shows them."""
    assert condition_of([model_view()], [worker().view(0)], 1) == (
        "busy",
        "All workers are ready; 1 request waits.",
    )
    starting = Worker(W2, hello("gpu1"), 0.0).view(0)
    condition, words = condition_of([model_view()], [worker().view(0), starting], 0)
    assert (condition, words) == ("busy", "All models are served; gpu1 is not ready.")


def test_events_are_in_words_and_say_since_when_the_cloud_answers() -> None:
    """Events are in words, and say since when the cloud answers, as far as they go back."""
    now = [1_800_000_000.0]
    feed = EventFeed(unix_time=lambda: now[0])
    feed.publish(FallbackOn("alpha", ("sky",), "no worker of alpha is ready"))
    now[0] += 60
    feed.publish(WorkerLost("gpu0", "silent"))
    assert away_since(feed.recent) == {"alpha": 1_800_000_000.0}
    view = model_view(state="down", fallback=CLOUD)
    (row,) = overview_of(source(models=[view], away_since=away_since(feed.recent))).models
    assert (row.is_away, row.since, row.providers) == (True, 1_800_000_000.0, ("sky",))
    last = event_row(feed.recent[-1])
    assert (last.number, last.kind, last.level) == (2, "worker lost", "warning")
    assert last.text == "gpu0 is gone: silent"


def test_first_tokens_are_those_of_open_and_of_recent_requests() -> None:
    """First tokens are those of open and of recent requests, in ms: the median and the worst of
    twenty.
    """
    open_ones = [request("a", first_at=90.1), request("b")]
    recent = [request("c", first_at=90.2), request("d", first_at=90.3)]
    totals = overview_of(source(open=open_ones, recent=recent)).totals
    assert (totals.first_p50_ms, totals.first_p95_ms, totals.firsts) == (200.0, 300.0, 3)


def test_a_overview_comes_back_from_its_json() -> None:
    """`herma top` reads it so."""
    traces = [request("a", number=1, usage=Usage(1, 1, 1), ended_at=99.0, status=200)]
    fields: dict[str, Any] = {"models": [model_view()], "workers": [worker().view(1)]}
    shown = overview_of(source(recent=traces, clients={"x": (10, 5)}, **fields))
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Overview) == shown


def test_workers_are_in_the_order_in_which_people_count() -> None:
    """gpu2 before gpu10."""
    views = [worker(name).view(0) for name in ("gpu10", "gpu2", "a", "gpu", "gpu2b")]
    rows = overview_of(source(workers=views)).workers
    assert [row.name for row in rows] == ["a", "gpu", "gpu2", "gpu2b", "gpu10"]
