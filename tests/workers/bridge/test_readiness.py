"""What a start tells, and which facts the gateways get."""

import json
from pathlib import Path

import msgspec
import pytest

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.bridge.model_window import with_models_window
from workers.bridge.readiness import StartReports, facts_of
from workers.bridge.text_readiness import warn_of_other_model
from workers.external import EngineLimits, OpenAiApi, SglangApi, phase_of

CONFIG = WorkerConfig(
    name="w",
    model="/m",
    serves="m",
    gateways=(),
    max_seqs=16,
    token_budget=1024,
    max_context=100_000,
    engine="vllm",
    url="http://127.0.0.1:8000",
)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Loading safetensors checkpoint shards:  50% Completed | 2/4", ("weights", 0.5)),
        ("Loading weights took 2.21 seconds", ("weights", 0.0)),
        ("Capturing CUDA graphs (PIECEWISE):  25%|##5  | 2/8", ("warm-up", 0.25)),
        ("torch.compile takes 16.02 s in total", ("compile", 0.0)),
        ("GPU KV cache size: 360,858 tokens", ("memory", 0.0)),
        ("Capturing batches (bs=8 avail_mem=3.06 GB): 40%|####", ("warm-up", 0.4)),
        ("The server is fired up and ready to roll!", ("server", 0.0)),
        ("load_tensors: offloaded 29/29 layers to GPU", ("weights", 1.0)),
        ("main: server is listening on http://127.0.0.1:8080", ("server", 0.0)),
        ("INFO 11-23 a line of no known form", None),
    ],
)
def test_known_lines_tell_a_phase(line: str, phase: tuple[str, float] | None) -> None:
    """Lines as vLLM, SGLang and llama-server write them."""
    assert phase_of(line) == phase


def test_reports_are_few_and_any_line_is_a_sign_of_life() -> None:
    """Reports are few, at most two a second and one at each new phase, and none once the start is
    over; any line is a sign of life.
    """
    now = 0.0
    said: list[tuple[str, float, str]] = []
    reports = StartReports(lambda *report: said.append(report), clock=lambda: now)
    for step in range(100):
        now = step * 0.1
        reports.line(f"Loading safetensors checkpoint shards: {step}% Completed")
    assert 10 <= len(said) <= 22
    reports.line("torch.compile takes 16 s in total")
    assert said[-1][0] == "compile"
    now += 1
    reports.line("something unknown")
    assert said[-1] == ("compile", 0.0, "something unknown")
    reports.is_over = True
    now += 1
    reports.line("Capturing CUDA graphs 1%")
    assert said[-1][0] == "compile"


def test_a_fraction_stays_until_the_next_phase() -> None:
    """A bar does not jump back at lines that say no fraction."""
    now = 0.0
    said: list[tuple[str, float, str]] = []
    reports = StartReports(lambda *report: said.append(report), clock=lambda: now)
    for line in ("Loading checkpoint shards: 50% | 2/4", "a warning", "torch.compile takes 1 s"):
        now += 1
        reports.line(line)
    assert [one[:2] for one in said] == [("weights", 0.5), ("weights", 0.5), ("compile", 0.0)]


def test_facts_are_the_engines_within_the_configuration() -> None:
    """The smaller window and number of sequences; room in whole blocks."""
    facts = facts_of(CONFIG, EngineLimits(context_length=4096, max_seqs=4, kv_tokens=10_000))
    assert (facts.context_length, facts.max_seqs, facts.kv_tokens) == (4096, 4, 9984)
    facts = facts_of(CONFIG, EngineLimits(context_length=2**20))
    assert (facts.context_length, facts.max_seqs, facts.kv_tokens) == (100_000, 16, 1_600_000)


def test_a_window_that_nobody_knows_is_an_error() -> None:
    """A window that is unknown is an error, as is one that the engine does not have."""
    with pytest.raises(ConfigError, match=r"`context_length = 32768`.*`name = \""):
        facts_of(CONFIG, EngineLimits())
    exact = msgspec.structs.replace(CONFIG, context_length=8192)
    assert facts_of(exact, EngineLimits()).context_length == 8192
    with pytest.raises(ConfigError, match="more than the 4096"):
        facts_of(exact, EngineLimits(context_length=4096))


@pytest.mark.parametrize(
    ("info", "window"),
    [
        ({"max_total_num_tokens": 50_000, "max_req_input_len": 49_994}, 49_994),
        ({"max_total_num_tokens": 50_000}, 49_994),
        ({"max_total_num_tokens": 100_000, "max_req_input_len": 49_994}, 49_994),
        ({"max_total_num_tokens": 400_000, "max_req_input_len": 65_530}, 65_536),
        ({"max_total_num_tokens": 65_536}, 65_536),
        ({"max_total_num_tokens": 3}, 65_536),
        ({}, 65_536),
    ],
)
def test_a_window_that_the_memory_does_not_hold_is_none(info: dict[str, int], window: int) -> None:
    """SGLang starts with it, and an agent's prompt of that length failed on each worker."""
    listed = {"data": [{"id": "m", "max_model_len": 65_536}]}
    answers = {"/server_info": msgspec.json.encode(info), "/v1/models": msgspec.json.encode(listed)}
    limits = SglangApi().limits(answers)
    assert facts_of(CONFIG, limits).context_length == window
    stated = msgspec.structs.replace(CONFIG, context_length=60_000)
    assert facts_of(stated, limits).context_length == min(window, 60_000)


WINDOWS: dict[str, tuple[dict[str, object], int | None]] = {
    "plain": ({"max_position_embeddings": 2048}, 2048),
    "of its text": (
        {"max_position_embeddings": 16, "text_config": {"max_position_embeddings": 4096}},
        4096,
    ),
    "by GPT's name": ({"n_positions": 1024}, 1024),
    "none": ({"model_type": "mamba"}, None),
    "no number": ({"max_position_embeddings": "many"}, None),
}


@pytest.mark.parametrize("kind", sorted(WINDOWS))
@pytest.mark.parametrize("place", ["directory", "hub cache"])
def test_a_text_engine_without_a_window_has_that_of_its_model(
    kind: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`transformers serve` names none. Where the file came from is said."""
    file, window = WINDOWS[kind]
    (tmp_path / "config.json").write_text(json.dumps(file))
    model = str(tmp_path)
    if place == "hub cache":
        model = "house/model"
        monkeypatch.setattr("workers.hub.cached", lambda *_: tmp_path)
    config = msgspec.structs.replace(CONFIG, engine="openai", model=model)
    assert with_models_window(config, EngineLimits()).context_length == window
    assert (str(tmp_path / "config.json") in caplog.text) == (window is not None)
    stated = msgspec.structs.replace(config, context_length=7)
    assert with_models_window(stated, EngineLimits()).context_length is None
    assert with_models_window(config, EngineLimits(context_length=5)).context_length == 5


def test_a_model_that_is_not_here_has_no_window(tmp_path: Path) -> None:
    """A model that is not on this host has no window from its config; nor has a token engine, which
    reports its own.
    """
    for engine, model in (("openai", "nobody/has-this"), ("openai", "a name"), ("vllm", "x/y")):
        config = msgspec.structs.replace(CONFIG, engine=engine, model=model)
        assert with_models_window(config, EngineLimits()).context_length is None
    (tmp_path / "config.json").write_text("half {")
    config = msgspec.structs.replace(CONFIG, engine="openai", model=str(tmp_path))
    assert with_models_window(config, EngineLimits()).context_length is None


@pytest.mark.parametrize(
    ("listed", "is_other"),
    [
        (["m"], False),
        (["other"], True),
        (["other", "m"], False),
        (["one", "two"], False),
        (["m:latest"], False),
        ([], False),
    ],
)
def test_an_engine_that_has_another_model_is_named(
    listed: list[str], is_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """llama-server answers to any name: started again with another file, nobody would notice."""
    body = msgspec.json.encode({"data": [{"id": name} for name in listed]})
    limits = OpenAiApi("m").limits({"/v1/models": body})
    warn_of_other_model(msgspec.structs.replace(CONFIG, engine="openai", model="m"), limits)
    assert ("lists one model, `other`, and not `m`" in caplog.text) is is_other
    assert bool(caplog.text) is is_other
