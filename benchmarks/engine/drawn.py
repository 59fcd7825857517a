"""Engines with drawn weights, whose experts are drawn too, for a comparison in one process.

Owns what SHAPE[:MODE] means, the life of such an engine, and its prompts. Must not know what is
compared.
"""

import argparse
import gc
from collections.abc import Callable
from typing import Final

import torch

from benchmarks.engine.client import BenchClient
from benchmarks.engine.drawing import Drawing
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.mixtures import MODES
from benchmarks.engine.run import Options
from config import WorkerConfig
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.start import load_runner

_MAX_WAITING: Final = 128


def options_of(name: str, device: str, parser: argparse.ArgumentParser) -> Options:
    """The options for SHAPE[:MODE], by default in 16 bits; the parser exits for an unknown mode."""
    shape, _, mode = name.partition(":")
    if mode and mode not in MODES:
        parser.error(f"{name}: SHAPE:MODE, of the modes {', '.join(MODES)}")
    return Options(shape, dummy=True, device=device, **MODES[mode or "bf16"])


def serve(config: WorkerConfig, act: Callable[[BenchClient], None]) -> None:
    """Let `act` ask an engine of that configuration, which is released afterwards."""
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    drawing = Drawing.of(runner.model)
    if drawing is not None:
        drawing.turn(on=True)
    engine = MeasuredEngine(runner, max_waiting=_MAX_WAITING)
    engine.serve(act)
    del engine, runner
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def prompt(length: int, seed: int) -> list[int]:
    """Tokens that differ from another seed's tokens from the first on, so that the prefix cache
    finds no prompt of another seed; the same prompt again hits its own blocks.
    """
    return [(7919 * seed + 31 * at) % 9973 for at in range(length)]
