"""What is counted of requests is told as the client library's own counters would tell it."""

import re
import shutil
import subprocess
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.api.events import Usage
from gateway.http.edge import FleetGauges
from gateway.http.metrics import Metrics
from gateway.http.turn_metrics import TurnMetrics
from gateway.routing import WorkerView
from gateway.telemetry import COUNTED, GatewayCounters, RequestTrace
from protocol.ids import WorkerId
from protocol.messages import Load
from protocol.version import VERSION
from tests.fakes.asgi import model_view

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
seconds = st.sampled_from((0.0, 0.01, 0.05, 0.3, 900.0, 1e4)) | st.floats(0, 1_000)
counts = st.integers(0, 2**20)


class Reference:
    """The same counts by the client library."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "herma_requests",
            "Chat requests by their end (499: the client left).",
            ("model", "status", "served_by"),
            registry=registry,
        )
        self.tokens = Counter(
            "herma_tokens",
            "Tokens of answered requests; cached ones are part of the prompt.",
            ("model", "kind"),
            registry=registry,
        )
        self.first_token = Histogram(
            "herma_first_token_seconds",
            "From a request to its first content.",
            ("model",),
            buckets=FIRST_TOKEN_S,
            registry=registry,
        )
        self.duration = Histogram(
            "herma_request_seconds",
            "From a request to the end of its answer.",
            ("model",),
            buckets=DURATION_S,
            registry=registry,
        )

    def observe(self, turn: dict[str, Any]) -> None:
        model, usage = turn["model"], turn["usage"]
        self.requests.labels(model, str(turn["status"]), turn["served_by"]).inc()
        self.duration.labels(model).observe(turn["duration_s"])
        first_token = self.first_token.labels(model)
        kinds = [self.tokens.labels(model, kind) for kind in ("prompt", "cached", "completion")]
        if turn["first_token_s"] is not None:
            first_token.observe(turn["first_token_s"])
        if usage is not None:
            told = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            for counter, count in zip(kinds, told, strict=True):
                counter.inc(count)


turns = st.fixed_dictionaries(
    {
        "model": st.sampled_from(('al"pha', "beta\\", "unknown")),
        "status": st.sampled_from((200, 400, 499)),
        "served_by": st.sampled_from(("worker", "cloud:x", "none")),
        "usage": st.none() | st.builds(Usage, counts, counts, counts),
        "first_token_s": st.none() | seconds,
        "duration_s": seconds,
    }
)


def trace_of(turn: dict[str, Any]) -> RequestTrace:
    """The request as a trace; the clock begins with the request."""
    return RequestTrace(
        model=turn["model"],
        status=turn["status"],
        served_by=turn["served_by"],
        usage=turn["usage"],
        first_at=turn["first_token_s"],
        ended_at=turn["duration_s"],
    )


def text_of(registry: CollectorRegistry) -> str:
    """What is shown, with any one time in place of those since when something is counted."""
    shown = generate_latest(registry).decode()
    return re.sub(r"(_created(?:\{[^\n]*\})?) \d\S+", r"\1 1.0", shown)


@given(turns=st.lists(turns, max_size=20))
def test_the_text_is_the_librarys(turns: list[dict[str, Any]]) -> None:
    """Families, order, names, labels, buckets and values are the same, byte by byte."""
    ours, reference = TurnMetrics(lambda: 1.8e9), Reference()
    for turn in turns:
        ours.observe(trace_of(turn))
        reference.observe(turn)
    registry = CollectorRegistry()
    registry.register(ours)
    assert text_of(registry) == text_of(reference.registry)


def test_it_is_told_since_when_each_is_counted() -> None:
    """A counter that begins anew with its process can be told from one that fell."""
    metrics = TurnMetrics(lambda: 1.5)
    metrics.observe(RequestTrace(model="alpha", status=200, served_by="worker", ended_at=0.1))
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    created = [line for line in lines if "_created{" in line]
    assert len(created) == 1 + 3 + 2
    assert all(line.endswith(" 1.5") for line in created)


def test_what_is_shown_is_clean_and_begins_at_0() -> None:
    """The metrics begin at 0, and are clean by the rules of Prometheus's own checker, where it is
    installed.
    """
    load = Load(1, 1, 0, 5, 9, 3, 0, step_ms=12.0, prefill_tokens_per_s=900.0)
    worker = WorkerView(
        WorkerId(1), "w", ("alpha",), "ready", 1, None, load, 0, 0, 0, fault="", fault_kind=None
    )
    gauges = FleetGauges(workers=(worker,), counters={"turns_started": 1})
    text = Metrics(lambda: (model_view(),), lambda: gauges).render()
    assert b"_created" not in text
    for server in ("none", "worker"):
        sample = f'herma_requests_total{{model="alpha",served_by="{server}",status="502"}} 0.0'
        assert sample in text.decode()
    assert b'herma_engine_step_seconds{worker="w"} 0.012' in text
    if (checker := shutil.which("promtool")) is not None:
        said = subprocess.run(
            [checker, "check", "metrics"], input=text, capture_output=True, check=False
        )
        assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


def test_every_metric_says_what_it_is() -> None:
    """In words of its own, beside the usual figures of a process and the version."""
    counters = GatewayCounters().as_dict()
    assert {*counters, "unroutable_frames"} == {*COUNTED}
    gauges = FleetGauges(counters=counters)
    text = Metrics(tuple, lambda: gauges).render().decode()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert not [name for name, said in helps.items() if not re.match(r"[A-Z0-9].+\.$", said)]
    assert f'herma_build_info{{version="{VERSION}"}} 1.0' in text
    assert "process_resident_memory_bytes" in helps
