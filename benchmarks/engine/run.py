"""One run of the benchmark: start, tests, check, report.

Owns the order and the content of the report. Must not know how a test measures.
"""

import gc
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, final

import torch

from benchmarks.engine.cases import CASES, EngineBench, reusable_tokens
from benchmarks.engine.ceiling import measured_ceiling
from benchmarks.engine.check import check_answers
from benchmarks.engine.client import MODEL, BenchClient
from benchmarks.engine.drawing import Drawing
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.figure import EngineFigure, table
from benchmarks.engine.floor import Ceiling, EngineFloor
from benchmarks.engine.grammar import grammar
from benchmarks.engine.peer import NO_BAR, EngineBar, bar
from benchmarks.engine.scale import CARD, SMOKE, Scale
from benchmarks.engine.soak import Soak, soak
from benchmarks.engine.start import StartTimes, measure_start
from benchmarks.engine.trace import StepTrace
from benchmarks.engine.verdict import AnswerVerdict, doubt, failures, summary
from benchmarks.engine.vocabulary import write_vocabulary
from benchmarks.machine import describe_machine
from benchmarks.progress import ProgressBar
from config import DUMMY_PREFIX, WorkerConfig
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.compile.kernel_cache import CACHE_VARIABLE
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.models.description import ModelDescription
from workers.engine.parallel.leader import LeadingRunner
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import TOKENIZER_NAME, dummy_names
from workers.scheduler import PrefixStates

_CASES: Final = {**CASES, "grammar": grammar}
ALL: Final = ("start", *_CASES)
TESTS: Final = (*ALL, "soak", "smoke")

_PACKAGES: Final = ("torch", "triton")
_SOAK_SEED: Final = 0


@final
class EngineReport:
    """The results of a run as named parts, written to a file from the first part on: a run that a
    time limit or a fault ends leaves its results so far, marked as unfinished. With `path` None
    they stay in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.parts: dict[str, Any] = {"finished": False}
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, **parts: Any) -> None:  # noqa: ANN401 -- whatever JSON can say
        """Add or replace parts. Raises `OSError`."""
        self.parts |= parts
        if self._path is not None:
            # The rename makes the file complete at any moment.
            fresh = self._path.with_name(f".{self._path.name}.part")
            fresh.write_text(f"{json.dumps(self.parts, indent=2)}\n", encoding="utf-8")
            fresh.replace(self._path)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `batches`, `lengths`, `runs`, `kv_tokens` and `checked` replace those of
    the scale, for a model that needs the memory or a card that is available for minutes only.
    """

    model: str
    dummy: bool = False
    fp8: bool = False
    int4: bool = False
    head: Literal["auto", "fp8", "int4"] = "auto"
    embedding: Literal["auto", "host"] = "auto"
    prefill_fp8: bool = False
    invariant: bool = False
    tests: tuple[str, ...] = ALL
    device: str = "auto"
    seconds: float = 480.0
    is_smoke: bool = False
    batches: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    runs: int = 0
    requests: int = 0
    kv_tokens: int = 0
    checked: int = 0

    @property
    def scale(self) -> Scale:
        """The sizes of the tests."""
        scale = SMOKE if self.is_smoke else CARD
        if self.batches:
            scale = replace(scale, batches=self.batches, max_seqs=max(self.batches))
        return replace(
            scale,
            firsts=self.lengths or scale.firsts,
            runs=self.runs or scale.runs,
            workload_runs=self.runs or scale.workload_runs,
            kv_tokens=self.kv_tokens or scale.kv_tokens,
            workload_requests=self.requests or scale.workload_requests,
            checked=self.checked or scale.checked,
            checked_rows=self.checked or scale.checked_rows,
        )

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return Path(self.model).name.lower()


def run(options: Options, report: EngineReport, trace: StepTrace | None = None) -> AnswerVerdict:
    """Measure and print. Returns the verdict on all answers; the report has the results.

    With `trace` the steps of each test are recorded and summed up beside its figures. Raises
    `ConfigError`.
    """
    began_at = time.perf_counter()
    config = worker_config(options)
    progress = ProgressBar(len(options.tests) + 2)
    figures: list[EngineFigure] = []
    report.note(model=options.name, fp8=options.fp8, figures=[])
    report.note(head=options.head, embedding=options.embedding)
    report.note(int4=options.int4, prefill_fp8=options.prefill_fp8, invariant=options.invariant)
    if "start" in options.tests:
        # First, while the card is empty.
        progress.begin("start to ready")
        starts = _starts(options, config, figures, progress)
        report.note(starts=starts, figures=[one.as_json() for one in figures])
        progress.end()
    progress.begin("loading the model")
    # While kernels compile ahead, as in an engine process.
    ahead = start_compiling(config)
    ceiling = measured_ceiling(_device(options.device))
    runner = load_runner(config, lambda _phase, _fraction, _detail: None, ahead)
    progress.end()
    report.note(machine=_machine(runner), engine=_facts(runner))
    report.note(ceiling=None if ceiling is None else asdict(ceiling))
    gc.freeze()  # as in an engine process
    compiler = _compiler(runner) if "grammar" in options.tests else None
    engine = MeasuredEngine(
        runner, max_waiting=2 * options.scale.max_seqs, trace=trace, compiler=compiler
    )
    wrong: list[str] = []
    floor = None if ceiling is None else floor_of(options, runner.model.config, ceiling)
    bench = _tests(options, engine, floor, figures, progress, report, trace)
    samples = list(bench.samples) if bench else []
    if "soak" in options.tests:
        result = _soak(options, engine, progress, report)
        samples += [*result.kept, *result.alone]
        wrong += result.wrong
    progress.begin("checking answers")
    checked = check_answers(runner, samples) if samples else []
    wrong += failures(checked) if samples else []
    doubted = doubt(checked) if samples else None
    progress.end()
    report.note(
        prepared_s=round(engine.prepared_s, 3),
        checks=[one.as_json() for one in checked],
        wrong=wrong,
        doubt=doubted,
        seconds=round(time.perf_counter() - began_at, 1),
        finished=True,
    )
    progress.say(_summary(report.parts, figures, summary(checked)))
    return AnswerVerdict.of(wrong, doubted)


def worker_config(options: Options) -> WorkerConfig:
    """The configuration of the measured worker. Raises `ConfigError`."""
    model, scale = options.model, options.scale
    if options.dummy or model in dummy_names():
        model = model if model.startswith(DUMMY_PREFIX) else f"{DUMMY_PREFIX}{model}"
    return WorkerConfig(
        name="bench",
        model=model,
        serves=MODEL,
        gateways=(),
        device=options.device,
        quantization="int4" if options.int4 else "fp8" if options.fp8 else "auto",
        head=options.head,
        embedding=options.embedding,
        prefill="fp8" if options.prefill_fp8 else "auto",
        invariant=options.invariant,
        max_seqs=scale.max_seqs,
        token_budget=scale.token_budget,
        kv_tokens=scale.soak_kv_tokens if "soak" in options.tests else scale.kv_tokens,
        context_length=scale.context_length,
    )


def floor_of(options: Options, shape: ModelDescription, ceiling: Ceiling) -> EngineFloor:
    """The floor of a shape on a card."""
    return EngineFloor(
        shape,
        ceiling,
        fp8=options.fp8 or shape.stored.is_fp8,
        fp8_prompts=options.prefill_fp8,
        int4=options.int4 or shape.stored.is_int4,
        head=options.head,
    )


def _device(name: str) -> torch.device:
    """The one that a worker with `device = name` takes."""
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda:0" if name in {"auto", "cuda"} else name)


def _starts(
    options: Options, config: WorkerConfig, figures: list[EngineFigure], progress: ProgressBar
) -> list[dict[str, Any]]:
    """Starts with an empty kernel cache, then with the cache of that start."""
    starts: list[StartTimes] = []
    with tempfile.TemporaryDirectory() as cache:
        for name in ("no kernels cached", "kernels cached"):
            started = measure_start(config, {CACHE_VARIABLE: cache})
            starts.append(started)
            key = "start" if len(starts) == 1 else "start-again"
            limits = bar(options.name, fp8=options.fp8, key="start")
            label = f"start to first answer, {name}"
            figures.append(EngineFigure(key, label, "s", (started.seconds,), None, limits))
            phases = ", ".join(f"{phase} {took:.2f}" for phase, took in started.phases.items())
            progress.say(f"{label}: {started.seconds:.2f} s ({phases})")
    return [asdict(started) for started in starts]


def _tests(
    options: Options,
    engine: MeasuredEngine,
    floor: EngineFloor | None,
    figures: list[EngineFigure],
    progress: ProgressBar,
    report: EngineReport,
    trace: StepTrace | None,
) -> EngineBench | None:
    names = [name for name in options.tests if name in _CASES]
    if not names:
        return None
    runner = engine.books.runner
    made: list[EngineBench] = []

    def bars(key: str) -> EngineBar:
        return NO_BAR if options.int4 else bar(options.name, fp8=options.fp8, key=key)

    def act(client: BenchClient) -> None:
        vocab_size = runner.model.config.vocab_size
        drawing = Drawing.of(runner.model)
        bench = EngineBench(
            client, options.scale, floor, vocab_size, bars, _reusable(runner), drawing
        )
        made.append(bench)
        if drawing is not None:
            drawing.turn(on=True)
        for name in names:
            progress.begin(name)
            for figure in _CASES[name](bench):
                figures.append(figure)
                report.note(figures=[one.as_json() for one in figures])
                progress.say(f"{figure.name}: {figure.value:.4g} {figure.unit}{_beside(figure)}")
                if trace is not None and trace.has_steps:
                    progress.say(trace.end(figure.key))
            progress.end()

    engine.serve(act)
    engine.books.check_idle()
    if made[0].drawing is not None:
        made[0].drawing.turn(on=False)
    return made[0]


def _beside(figure: EngineFigure) -> str:
    """The floor and the experts of a figure, as a run that is cut off leaves them."""
    floor = "" if figure.floor is None else f", floor {figure.floor:.4g}"
    if figure.experts is None:
        return floor
    found, expected = figure.experts
    said = "" if figure.counts else ": does not count"
    return f"{floor}, {found:.1f} experts of {expected:.1f}{said}"


def _reusable(runner: ModelRunner | LeadingRunner) -> Callable[[int], int]:
    facts = runner.facts
    states = PrefixStates.of(facts.snapshots, facts.block_size)
    saves = None if states is None else states.policy
    return lambda length: reusable_tokens(length, saves)


def _soak(
    options: Options, engine: MeasuredEngine, progress: ProgressBar, report: EngineReport
) -> Soak:
    def look(line: str, so_far: Soak) -> None:
        progress.say(line)
        report.note(soak=so_far.as_json())

    progress.begin("soak")
    result = soak(engine, options.scale, options.seconds, _SOAK_SEED, look)
    progress.end()
    return result


def _compiler(runner: ModelRunner) -> LlGuidanceCompiler:
    """A compiler of grammars with the model's tokenizer, or with a made-up one for a shape."""
    size, eos_ids = runner.model.config.vocab_size, runner.eos_ids
    if (runner.model_dir / TOKENIZER_NAME).exists():
        return LlGuidanceCompiler(runner.model_dir, size, eos_ids)
    with tempfile.TemporaryDirectory() as folder:
        write_vocabulary(Path(folder), size, min(eos_ids))
        compiler = LlGuidanceCompiler(Path(folder), size, eos_ids)
        compiler.load()
    return compiler


def _facts(runner: ModelRunner) -> dict[str, Any]:
    """The engine's facts, without the digest of files, which does not exist here."""
    facts = runner.facts
    names = ("device", "dtype", "context_length", "block_size", "kv_tokens", "max_seqs")
    return {name: getattr(facts, name) for name in (*names, "token_budget")}


def _device_name(runner: ModelRunner) -> str:
    device = runner.model.weights.embedding.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _machine(runner: ModelRunner) -> dict[str, str]:
    return {"device": _device_name(runner), **describe_machine(_PACKAGES)}


def _summary(report: dict[str, Any], figures: list[EngineFigure], checks: str) -> str:
    lines = ["", table(figures), ""] if figures else [""]
    if "soak" in report:
        lines.append(f"soak: {report['soak']}")
    lines.append(checks)
    lines += report["wrong"] or [report["doubt"] or "all right"]
    lines.append(f"{'; '.join(report['machine'].values())}; {report['seconds']} s")
    return "\n".join(lines)
