"""`herma bench speculation`: measures whether speculation pays on this machine.

Owns the order of a run and its report. Must not know how drafts are made or verified.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import msgspec
import torch

from benchmarks.engine.drawing import Drawing
from benchmarks.machine import describe_machine
from benchmarks.speculation.measure import (
    ADAPTIVE,
    IDLE,
    NONE,
    SpeculationBench,
    SpeculationFigure,
    SpeculationLoad,
)
from benchmarks.speculation.synthetic import (
    SyntheticDrafter,
    drafter_config,
    dummy_drafter,
    expected_length,
    rates_of,
    says_one_token,
)
from benchmarks.speculation.table import acceptances, plot, rows, verdicts
from benchmarks.speculation.texts import loads_for
from config import DUMMY_PREFIX, INDEX_DRAFTERS, SpeculationConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.load import drafts_in_fp8, load_drafter
from workers.engine.drafting.speculating import speculation_for
from workers.engine.models.model_config import read_model_config
from workers.engine.runner import DraftingSetup, ModelRunner, steps_on
from workers.engine.start import load_runner
from workers.model_dir import CONFIG_NAME, drafter_dir, dummy_names, local_dir
from workers.scheduler import Proposer

_NAME: Final = "speculation"
_SLACK: Final = 128
"""Slots of a sequence beyond its tokens: blocks are whole, and drafts follow the tokens."""

_MOST_TEXT: Final = 64
"""The most drafts that earlier text offers after a token."""

_DUMMY_DRAFTERS: Final = ("dflash", "mtp")


def run_command(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises `ConfigError`."""
    batches = _numbers("--batches", arguments.batches)
    depths = _numbers("--depths", arguments.depths)
    runner = _runner(arguments, max(batches))
    drafter = _drafter(arguments, runner)
    drawing = Drawing.of(runner.model)
    if drawing is not None:
        drawing.turn(on=True)
    sampling = SamplingParams(
        max_tokens=arguments.outputs,
        temperature=arguments.temperature,
        ignore_eos=arguments.acceptance is not None,
    )
    loads = loads_for(
        _model(arguments),
        runner.model_dir,
        arguments.text or (),
        count=max(arguments.prompts, *batches),
        prompt_tokens=arguments.prompt_tokens,
        sampling=sampling,
        vocab_size=runner.model.config.vocab_size,
    )
    figures = []
    given = runner, drafter, loads, batches, depths, arguments
    for figure, profile in _figures(*given):
        figures.append(figure)
        print("\n".join([_line(figure), *profile]), flush=True)
    machine = describe_machine(("torch", "triton"))
    device = _device(runner)
    print("\n" + "\n".join(rows(figures)) + "\n")
    print("\n".join([*acceptances(figures), *verdicts(figures)]))
    if arguments.acceptance is not None:
        length = expected_length(rates_of(arguments.acceptance), max(depths, default=0))
        print(f"synthetic acceptance {arguments.acceptance}: {length:.2f} tokens of a deep pass")
    if drawing is not None and (distinct := drawing.distinct(batches[-1])) is not None:
        print(
            f"experts were drawn: {distinct.found:.1f} of a layer in the last step's first "
            f"{batches[-1]} rows, {distinct.expected:.1f} expected"
        )
    title = f"{arguments.model} with {_shown(arguments, drafter)}, {device}"
    print(f"\n{title}; {'; '.join(machine.values())}")
    if arguments.plot is not None:
        plot(figures, title, arguments.plot)
    if arguments.json is not None:
        report = {"title": title, "machine": {**machine, "device": device}}
        _write(arguments.json, report, figures)
    return 0


def _figures(
    runner: ModelRunner,
    drafter: Drafter | None,
    loads: list[SpeculationLoad],
    batches: list[int],
    depths: list[int],
    arguments: argparse.Namespace,
) -> Iterator[tuple[SpeculationFigure, list[str]]]:
    """First all loads without drafts, if 0 is among `depths`: by an engine without a drafter, and
    by one whose drafter processes every step. Each figure comes with the card's work in its steps,
    if wanted.
    """
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    drafting = _with_drafter(runner, drafter, clock)
    most = _MOST_TEXT if drafter is None else drafter.max_depth
    idle = [] if drafter is None else [(IDLE, SpeculationBench(drafting, clock=clock))]
    benches = [(NONE, SpeculationBench(runner, clock=clock)), *idle] if 0 in depths else []
    ways: list[tuple[str, int | Literal["adaptive"]]] = [
        (str(depth), depth) for depth in depths if 0 < depth <= most
    ]
    if not arguments.fixed_only:
        ways.append((ADAPTIVE, ADAPTIVE))
    bench = SpeculationBench(drafting, most, clock)
    for load in loads:
        for batch in batches:
            own = load.of(arguments.prompts, batch)
            served: list[tuple[str, SpeculationBench, Proposer | None]] = [
                (way, plain, None) for way, plain in benches
            ]
            for way, depth in ways:
                config = _drafting_config(arguments.drafter, depth)
                served.append((way, bench, speculation_for(config, drafting)))
            best: dict[str, SpeculationFigure] = {}
            for is_last in (*[False] * (arguments.rounds - 1), True):
                for way, each, proposer in served:
                    figure = each.measure(own, batch, way, proposer)
                    best[way] = max(best.get(way, figure), figure, key=_pace)
                    if is_last:
                        shown = arguments.profile
                        yield best[way], each.profile(own, batch, proposer) if shown else []


def _shown(arguments: argparse.Namespace, drafter: Drafter | None) -> str:
    return arguments.drafter if drafter is None else drafter.name


def _pace(figure: SpeculationFigure) -> float:
    return figure.tokens_per_s


def _with_drafter(
    runner: ModelRunner, drafter: Drafter | None, clock: Callable[[], float]
) -> ModelRunner:
    """Another runner on the same model, keys and values, which verifies drafts."""
    cache = runner.cache
    if drafter is not None:
        drafter.take_cache(cache.num_blocks + 1, cache.block_size)
    drafting = DraftingSetup(True, drafter, clock)
    steps = steps_on(runner.model, cache, runner.facts, drafting=drafting)
    return ModelRunner(runner.model, cache, runner.facts, runner.model_dir, steps)


def _drafting_config(drafter: str, depth: int | Literal["adaptive"]) -> WorkerConfig:
    """A configuration that selects the proposer; the drafter itself is loaded already."""
    # A pass has at least one token, so no drafter causes a warning.
    chosen = SpeculationConfig(drafter=drafter, depth=depth, promised=1.0)
    return WorkerConfig(_NAME, _NAME, _NAME, (), token_budget=1, speculation=chosen)


def _runner(arguments: argparse.Namespace, most: int) -> ModelRunner:
    """A runner with room for the largest batch. Raises `ConfigError`."""
    window = arguments.prompt_tokens + arguments.outputs + _SLACK
    own = {} if arguments.dtype is None else {"dtype": arguments.dtype}
    config = WorkerConfig(
        name=_NAME,
        model=_model(arguments),
        serves=_NAME,
        gateways=(),
        device=arguments.device,
        quantization="fp8" if arguments.fp8 else "auto",
        max_seqs=most,
        token_budget=max(2048, 32 * most),
        kv_tokens=most * window,
        max_context=window,
        **own,
    )
    with TemporaryDirectory() as made:
        # Only for the compiler: this worker has no drafter.
        depths = _numbers("--depths", arguments.depths)
        is_one = arguments.fixed_only and len(depths) == 1
        depth = depths[0] if is_one and depths[0] else ADAPTIVE
        drafter = SpeculationConfig(_described(arguments, Path(made)), depth=depth)
        ahead = start_compiling(msgspec.structs.replace(config, speculation=drafter))
        return load_runner(config, lambda *_: None, ahead)


def _described(arguments: argparse.Namespace, room: Path) -> str:
    """The directory of the drafter, or one in `room` that describes it."""
    drafter: str = arguments.drafter
    path = local_dir(_model(arguments))
    if drafter in _DUMMY_DRAFTERS and path is not None:
        text = json.dumps(drafter_config(drafter, read_model_config(path)))
        (room / CONFIG_NAME).write_text(text, encoding="utf-8")
        return str(room)
    return drafter


def _drafter(arguments: argparse.Namespace, runner: ModelRunner) -> Drafter | None:
    """The drafter; None if drafts come from earlier text. Raises `ConfigError`."""
    if arguments.drafter in INDEX_DRAFTERS and arguments.acceptance is None:
        return None
    model, window = runner.model, runner.facts.context_length
    is_dummy = arguments.drafter in _DUMMY_DRAFTERS
    if is_dummy and arguments.acceptance is None:
        raise ConfigError("a drafter without trained weights needs --acceptance")
    if is_dummy:
        fp8 = drafts_in_fp8(model) if arguments.drafter_fp8 is None else arguments.drafter_fp8
        drafter = dummy_drafter(arguments.drafter, model, window, fp8=fp8)
    else:
        path = drafter_dir(arguments.drafter)
        if path is None:
            raise ConfigError(f"--drafter {arguments.drafter}: no such directory")
        drafter = load_drafter(path, model, window, fp8=arguments.drafter_fp8)
    if arguments.acceptance is None:
        return drafter
    says_one_token(model)
    return SyntheticDrafter(drafter, rates_of(arguments.acceptance), model.device)


def _model(arguments: argparse.Namespace) -> str:
    name: str = arguments.model
    return f"{DUMMY_PREFIX}{name}" if name in dummy_names() else name


def _numbers(option: str, text: str) -> list[int]:
    """The positive numbers of a list with commas and ranges such as 0-15. Raises `ConfigError`."""
    found: list[int] = []
    for part in text.split(","):
        first, sign, last = part.partition("-")
        if not first.isdigit() or (sign and not last.isdigit()):
            raise ConfigError(f"{option} {text!r}: numbers by commas, or ranges as 1-15")
        found += range(int(first), int(last if sign else first) + 1)
    return found


def _device(runner: ModelRunner) -> str:
    is_card = runner.model.device.type == "cuda"
    return torch.cuda.get_device_name() if is_card else "CPU"


def _line(figure: SpeculationFigure) -> str:
    return (
        f"{figure.kind:14} {figure.batch:4} at once  K {figure.way:9} "
        f"{figure.tokens_per_s:9,.0f} tokens/s  {figure.length:5.2f} a pass"
        f"{_times(figure)}"
    )


def _times(figure: SpeculationFigure) -> str:
    missed = f", {figure.num_missed} graphs missed" if figure.num_missed else ""
    if not figure.step_ms:
        return missed
    return f"  {figure.step_ms:6.2f} ms a step, {figure.draft_ms:5.2f} of it drafting{missed}"


def _write(path: Path, report: dict[str, Any], figures: list[SpeculationFigure]) -> None:
    content = {**report, "figures": [asdict(figure) for figure in figures]}
    path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")
