"""The engine's benchmark: run whole on a small model, and each of its judgements made to fail."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine import loading
from benchmarks.engine.cases import reusable_tokens
from benchmarks.engine.check import check_answers
from benchmarks.engine.client import BenchClient, EngineAnswer, EngineRequest
from benchmarks.engine.drawing import Distinct
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.figure import EngineFigure, table
from benchmarks.engine.files import write_checkpoint
from benchmarks.engine.floor import Ceiling, EngineFloor, distinct_experts
from benchmarks.engine.loading import measure_starts
from benchmarks.engine.peer import EngineBar, bar
from benchmarks.engine.plot import plot_decode
from benchmarks.engine.run import EngineReport, Options, run
from benchmarks.engine.scale import SMOKE
from benchmarks.engine.soak import soak
from benchmarks.engine.verdict import AnswerVerdict, doubt, failures
from config import WorkerConfig
from herma.cli import main
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import write_tiny_model
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import dummy_dir
from workers.scheduler import SavePolicy

H200 = Ceiling(4.26e12, 790e12, 1_401e12)
"""Measured with torch 2.11 (cu130) on random data."""


def _floor(name: str, *, fp8: bool = False) -> EngineFloor:
    return EngineFloor(read_model_config(dummy_dir(f"dummy:{name}")), H200, fp8)


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    config = WorkerConfig(
        name="bench",
        model=str(write_tiny_model(tmp_path, dtype="bfloat16")),
        serves="model",
        gateways=(),
        max_seqs=4,
        token_budget=64,
        device="cpu",
        dtype="bfloat16",
    )
    return load_runner(config, lambda *_: None)


def _answers(runner: ModelRunner, temperature: float) -> list[EngineAnswer]:
    found: list[EngineAnswer] = []
    prompts = [list(range(3 + number, 40)) for number in range(3)]
    requests = [EngineRequest(prompt, 12, temperature, seed=9) for prompt in prompts]

    def act(client: BenchClient) -> None:
        found.extend(client.call(requests)[0])

    engine = MeasuredEngine(runner, max_waiting=4)
    engine.serve(act)
    engine.books.check_idle()
    return found


def test_the_whole_benchmark_runs_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tests and the soak on the built-in model: figures, right answers, exit status 0."""
    result = tmp_path / "results/smoke.json"
    steps = tmp_path / "steps.json"
    options = ["--tests", "smoke", "--device", "cpu", "--json", str(result), "--trace", str(steps)]
    code = main(["bench", "engine", "--model", "builtin:herma-tiny", *options])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "| first token, 96 tokens cached + 32 new |" in printed
    report = json.loads(result.read_text())
    keys = {figure["key"] for figure in report["figures"]}
    assert keys >= {"start", "decode-1", "workload", "first-96-cold", "prefill", "long-decode"}
    assert {"turn-96-20", "grammar-2", "grammar-joins-steps"} <= keys
    # What masks cost may be less than nothing, in the noise of a CPU.
    measured = [one for one in report["figures"] if one["unit"] not in {"%", "steps"}]
    assert all(figure["value"] > 0 for figure in measured)
    assert all(one["is_right"] for one in report["checks"])
    assert list(report["starts"][0]["phases"])[-1] == "health probe"
    assert report["soak"]["num_requests"] > 0
    assert report["soak"]["load_s"] >= 1
    assert report["finished"]
    assert [path.name for path in result.parent.iterdir()] == ["smoke.json"]
    _check_trace(json.loads(steps.read_text()), keys)


def test_a_hybrid_goes_on_behind_its_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hybrid goes on behind a block with a state and not behind every block: of 383 tokens 320
    are found, where the prompt's state lies.
    """
    model, result = write_family(tmp_path / "model", "qwen3_5"), tmp_path / "hybrid.json"
    options = Options(
        str(model), tests=("decode", "first-token", "workload"), device="cpu", is_smoke=True,
        batches=(1, 2), lengths=(384,), runs=1, requests=3,
    )  # fmt: skip
    assert run(options, EngineReport(result)) is AnswerVerdict.RIGHT, capsys.readouterr().out
    report = json.loads(result.read_text())
    keys = [figure["key"] for figure in report["figures"]]
    assert keys == ["decode-1", "decode-2", "first-384-cold", "first-384-cached", "workload"]
    assert [len(figure["values"]) for figure in report["figures"]] == [1] * 5
    assert report["figures"][-1]["name"].startswith("3 requests,")
    assert report["engine"]["max_seqs"] == 2
    assert reusable_tokens(384, SavePolicy()) == 384
    assert reusable_tokens(385, SavePolicy()) == 384
    assert reusable_tokens(383, SavePolicy()) == 320
    assert reusable_tokens(96, SavePolicy()) == 0
    assert reusable_tokens(384, None) == 352


@pytest.mark.parametrize("option", ["--batches", "--lengths"])
@pytest.mark.parametrize("text", ["0", "1,x", "-3"])
def test_sizes_that_are_no_numbers_are_refused(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes that are no numbers are refused in one line."""
    assert main(["bench", "engine", "--model", "builtin:herma-tiny", f"{option}={text}"]) != 0
    assert "is not a list of numbers" in capsys.readouterr().err


def test_a_run_that_is_cut_off_leaves_what_it_knew(tmp_path: Path) -> None:
    """Each part replaces the file as a whole; only the last one says that all is there."""
    path = tmp_path / "new/report.json"
    report = EngineReport(path)
    report.note(model="tiny", figures=[])
    assert json.loads(path.read_text()) == {"finished": False, "model": "tiny", "figures": []}
    with pytest.raises(TypeError):
        report.note(figures=object())
    assert json.loads(path.read_text())["figures"] == []
    report.note(figures=[1], finished=True)
    assert json.loads(path.read_text()) == {"finished": True, "model": "tiny", "figures": [1]}


def test_a_soak_tells_each_of_its_parts(runner: ModelRunner) -> None:
    """Four of load, then the answers again; requests are known before the end."""
    engine = MeasuredEngine(runner, max_waiting=2 * SMOKE.max_seqs)
    told: list[tuple[str, int]] = []
    soak(engine, SMOKE, 0.4, 0, lambda line, so_far: told.append((line, so_far.num_requests)))
    assert [line.partition(":")[0] for line, _ in told] == [
        "soak 25 %", "soak 50 %", "soak 75 %", "soak 100 %", "soak",
    ]  # fmt: skip
    numbers = [number for _, number in told]
    assert 0 < numbers[0] < numbers[1] < numbers[3] == numbers[4]


def _check_trace(trace: dict[str, Any], keys: set[str]) -> None:
    """Every test has steps, whose parts add up to the time between results."""
    assert set(trace["tests"]) <= keys
    assert {"decode-4", "workload", "prefill", "long-decode"} <= set(trace["tests"])
    names = trace["columns"]
    for steps in trace["tests"].values():
        for step in steps:
            one = dict(zip(names, step, strict=True))
            parts = sum(one[f"{part}_ms"] for part in ("host", "launch", "send", "wait", "prepare"))
            assert one["step_ms"] == pytest.approx(parts, abs=1e-3)
    rows = [step[names.index("rows")] for step in trace["tests"]["decode-4"]]
    assert max(rows) == 4
    prefilled = [step[names.index("prefill_tokens")] for step in trace["tests"]["prefill"]]
    # Two prompts of 40 tokens, three times.
    assert sum(prefilled) == 2 * 40 * 3


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--tests", "decode,nothing"], "'nothing'"), (["--model", "qwen3-9b"], "qwen3-9b")],
)
def test_a_wrong_command_is_one_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown tests and models are refused with exit status 2."""
    options = ["--model", "builtin:herma-tiny", "--tests", "prefill", "--device", "cpu", *words]
    assert main(["bench", "engine", *options]) == 2
    text = capsys.readouterr().err
    assert named in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_right_answers_pass_and_wrong_ones_are_found(
    runner: ModelRunner, temperature: float
) -> None:
    """Greedy and drawn tokens in bfloat16 hold against float32; one foreign token does not."""
    answers = _answers(runner, temperature)
    checked = check_answers(runner, answers)
    assert failures(checked) == []
    assert doubt(checked) is None
    outputs = answers[1].outputs
    outputs[5] = (outputs[5] + 1) % 151
    (wrong,) = failures(check_answers(runner, answers))
    assert wrong.startswith("wrong tokens: ")


def test_an_engine_with_a_wrong_layer_is_found(runner: ModelRunner) -> None:
    """The reference shares the weights, and nothing else: here they changed in between."""
    answers = _answers(runner, 0.0)
    down = runner.model.weights.layers[1].down
    assert isinstance(down, torch.Tensor)
    down.copy_(down.flip(0))
    assert failures(check_answers(runner, answers))


def test_an_answer_that_was_cut_is_an_error(runner: ModelRunner) -> None:
    """Fewer tokens than asked for are less work."""
    answers = _answers(runner, 0.0)
    del answers[0].outputs[-1]
    with pytest.raises(RuntimeError, match="11 tokens"):
        check_answers(runner, answers)


def test_a_client_that_fails_ends_the_engine(runner: ModelRunner) -> None:
    """The error of a client that fails is raised, and the loop does not wait for ever."""

    def act(client: BenchClient) -> None:
        client.call([EngineRequest([10**6], 1)])

    with pytest.raises(RuntimeError, match="outside the vocabulary"):
        MeasuredEngine(runner, max_waiting=4).serve(act)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("0.6b", 0.596), ("1.7b", 1.72), ("4b", 4.02), ("8b", 8.19), ("14b", 14.8), ("32b", 32.8)],
)
def test_installed_shapes_have_the_published_sizes(name: str, billions: float) -> None:
    """Parameters: layers, head, and the embedding where it is not the head."""
    floor = _floor(f"qwen3-{name}")
    untied = 0 if floor.config.tied else floor.head_weights
    total = floor.layer_weights + floor.head_weights + untied
    assert total / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_floor_is_what_paper_says() -> None:
    """Decode steps in ms, and the tokens per second of a whole workload admitted at once."""
    assert 1e3 * _floor("qwen3-0.6b").step(1, 0) == pytest.approx(0.28, rel=0.01)
    assert 1e3 * _floor("qwen3-8b").step(1, 0) == pytest.approx(3.55, rel=0.01)
    assert 1e3 * _floor("qwen3-8b", fp8=True).step(1, 0) == pytest.approx(1.9, rel=0.05)
    assert 1e3 * _floor("qwen3-8b").step(8, 8 * 16_384) == pytest.approx(8.1, rel=0.01)
    # 64 layers of 27B and its head; 48 states of 3.15 MB, read and written, of each sequence.
    assert 1e3 * _floor("qwen3.6-27b").step(1, 0) == pytest.approx(12.0, rel=0.01)
    states = _floor("qwen3.6-27b").step(64, 0) - _floor("qwen3.6-27b").step(0, 0)
    assert 1e3 * states == pytest.approx(64 * 0.0724, rel=0.01)
    # A head of 248,320 x 5,120 numbers in 16, 8 or 4.19 bits.
    known, card = read_model_config(dummy_dir("dummy:qwen3.6-27b")), H200
    wide, by_row, by_group = (
        EngineFloor(known, card, int4=True, head=head).step(1, 0)
        for head in ("auto", "fp8", "int4")
    )
    assert 1e3 * (wide - by_row) == pytest.approx(0.298, rel=0.01)
    assert 1e3 * (wide - by_group) == pytest.approx(0.441, rel=0.01)
    # 8,192 tokens of 8B are 114 + 20 TFLOP of products and attention.
    assert 1e3 * _floor("qwen3-8b").prefill([8192]) == pytest.approx(170, rel=0.03)
    call = _floor("qwen3-8b").call([128], [256])
    steps = [_floor("qwen3-8b").step(1, 128 + step) for step in range(1, 256)]
    assert call == pytest.approx(_floor("qwen3-8b").prefill([128]) + sum(steps))


def test_figures_are_compared_the_right_way_round() -> None:
    """Times want to be small and rates large; the median of the runs counts."""
    time = EngineFigure("t", "a time", "ms", (9.0, 5.0, 4.0), 4.0, EngineBar(5.5, 5.0, 4.5))
    assert (time.value, time.share) == (5.0, 0.8)
    assert time.reaches(time.bar.must)
    assert not time.reaches(time.bar.goal)
    rate = EngineFigure("r", "a rate", "tok/s", (90.0,), 100.0, EngineBar(80.0, 95.0, 99.0))
    assert rate.share == 0.9
    assert not rate.reaches(rate.bar.must)
    assert table([time]).splitlines()[-1].endswith("| must |")
    assert table([rate]).splitlines()[-1].endswith("| NO |")
    assert not EngineFigure("n", "none", "ms", (math.nan,), None, EngineBar(must=1.0)).reaches(1.0)
    assert bar("qwen3-8b", fp8=True, key="decode-1").goal == 2.2
    assert bar("another", fp8=False, key="decode-1") == EngineBar()


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_checkpoint_loads_as_it_was_drawn(tmp_path: Path, *, tied: bool) -> None:
    """Published names and several files; every tensor comes back."""
    changes = {"num_hidden_layers": 10, "attention_bias": tied, "tie_word_embeddings": tied}
    shape = write_tiny_model(tmp_path / "shape", **changes)
    (written := tmp_path / "written").mkdir()
    cpu = torch.device("cpu")
    write_checkpoint(str(shape), written, cpu, torch.float32)
    config = read_model_config(written)
    loaded = load_weights(written, config, cpu, torch.float32, lambda *_: None)
    drawn = draw_weights(config, cpu, torch.float32)
    assert len(list(written.glob("*.safetensors"))) == 3
    assert torch.equal(loaded.head, drawn.head)
    for one, other in zip(loaded.layers, drawn.layers, strict=True):
        for field in fields(one):
            ours, theirs = getattr(one, field.name), getattr(other, field.name)
            assert ours is theirs or torch.equal(ours, theirs), field.name


@pytest.mark.slow
def test_a_start_with_real_files_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All phases of an engine process that reads a checkpoint. Every run has them of the built-in
    model, above.
    """
    monkeypatch.setattr(loading, "_RUNS", 1)
    shape = write_tiny_model(tmp_path / "shape", dtype="bfloat16")
    measure_starts(str(shape), torch.device("cpu"), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(f"{phase} " in lines[-1] for phase in ("import", "load", "memory", "health probe"))


def test_without_figures_there_is_no_picture(tmp_path: Path) -> None:
    """The command says that there are no figures, and draws no empty picture."""
    assert not plot_decode({"figures": []}, tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()


def test_a_window_bounds_what_a_step_reads() -> None:
    """8 of Gemma's 48 layers read 100k tokens of a sequence, the others 1,024, 8 KiB each."""
    floor = _floor("gemma-3-12b")
    read = (floor.step(1, 100_000) - floor.step(1, 0)) * H200.bandwidth
    assert read == pytest.approx(8192 * (8 * 100_000 + 40 * 1024))


def test_the_floor_of_a_mixture_counts_the_experts_that_were_chosen() -> None:
    """Decode steps in ms: of one row its own experts, of more as many as uniform choices have, or
    as many as the run chose.
    """
    mixture = _floor("qwen3-30b-a3b")
    assert 1e3 * mixture.step(1, 0) == pytest.approx(1.43, rel=0.01)
    assert 1e3 * _floor("qwen3-30b-a3b", fp8=True).step(1, 0) == pytest.approx(0.78, rel=0.01)
    # Weights 1.383, and the states of 30 layers, read and written.
    assert 1e3 * _floor("qwen3.6-35b-a3b").step(1, 0) == pytest.approx(1.413, rel=0.002)
    assert 1e3 * _floor("gpt-oss-20b").step(1, 0) == pytest.approx(0.87, rel=0.02)
    assert distinct_experts(128, 8, 8) == pytest.approx(51.6, rel=0.001)
    assert mixture.step(8, 0) == pytest.approx(mixture.step(8, 0, distinct_experts(128, 8, 8)))
    each = 48 * 3 * 768 * 2048 * 2 / H200.bandwidth
    assert mixture.step(8, 0, 60) - mixture.step(8, 0, 50) == pytest.approx(10 * each)
    assert mixture.weight_bytes == pytest.approx(60.4e9, rel=0.01)
    # 8,192 rows read all experts, and each is multiplied by 3.0 billion weights.
    assert 1e3 * mixture.prefill([8192]) == pytest.approx(90, rel=0.1)


def test_a_row_whose_experts_are_too_few_does_not_count() -> None:
    """Drawn weights route all rows alike; a twentieth off is the bound."""
    alike, drawn = Distinct(12.0, 51.6), Distinct(50.0, 51.6)
    wrong = EngineFigure("d", "a step", "ms/step", (2.0,), 2.0, EngineBar(must=9.0), alike)
    right = EngineFigure("e", "a step", "ms/step", (2.0,), 2.0, EngineBar(must=9.0), drawn)
    lines = table([wrong, right, EngineFigure("f", "another", "ms", (1.0,))]).splitlines()
    assert lines[2].endswith("| does not count | 12 | 51.6 |")
    assert lines[3].endswith("| must | 50 | 51.6 |")
    assert lines[4].endswith("|  |  |  |")
    assert not wrong.as_json()["counts"]
    assert right.as_json()["experts"] == drawn


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "gpt_oss"])
def test_a_mixture_is_timed_with_drawn_experts_and_checked_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    """The table says how many experts a step read; checked answers are those that the mixture's
    weights choose.
    """
    shape, result = write_family(tmp_path / "model", family), tmp_path / "mixture.json"
    options = Options(
        str(shape), dummy=True, tests=("decode", "first-token"), device="cpu", is_smoke=True,
        batches=(1, 4), lengths=(384,), runs=2, checked=1,
    )  # fmt: skip
    assert run(options, EngineReport(result)) is AnswerVerdict.RIGHT, capsys.readouterr().out
    printed = capsys.readouterr().out
    report = json.loads(result.read_text())
    routing = read_model_config(shape).mixtures[0].routing
    alone, four, *_ = report["figures"]
    assert alone["experts"] == pytest.approx([routing.num_active] * 2)
    expected = distinct_experts(routing.num_experts, routing.num_active, 4)
    assert four["experts"] == [pytest.approx(expected, rel=0.35), pytest.approx(expected)]
    assert "| experts | uniform |" in printed
    assert len(report["checks"]) == 3
