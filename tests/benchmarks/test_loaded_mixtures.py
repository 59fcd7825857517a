"""Mixtures of files draw their experts where a benchmark asks for it, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.http
from benchmarks.drive import Drive
from benchmarks.engine.drawing import Drawing
from benchmarks.engine.loaded_mixtures import draw_what_is_loaded
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from workers.engine.model_source import ModelSource

FOLDER = Path(benchmarks.http.__path__[0]) / "drawn_experts"
SAY = "from workers.engine.model_source import ModelSource; print(ModelSource.load.__module__)"


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_rows_choose_independently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Eight equal prompts read as many experts as uniform choices do; their weights alone would
    choose the same ones for all.
    """
    monkeypatch.setattr(ModelSource, "load", ModelSource.load)  # which puts it back
    model = write_family(tmp_path, family, num_hidden_layers=4)
    found = []
    for draws in (False, True):
        if draws:
            draw_what_is_loaded()
        runner = load_tiny(model, dtype="float32", kv_tokens=2048)
        drive, drawing = Drive(runner), Drawing.of(runner.model)
        for _ in range(8):
            drive.submit([5, 6, 7], SamplingParams(max_tokens=9, temperature=0.0))
        drive.finish()
        found.append(drawing and drawing.distinct(8))
    without, drawn = found
    assert without is None
    assert drawn is not None
    assert drawn.found > 0.75 * drawn.expected


def test_a_weightless_model_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense model without weights is left as it is."""
    monkeypatch.setattr(ModelSource, "load", ModelSource.load)
    draw_what_is_loaded()
    runner = load_tiny(write_family(tmp_path, "qwen2"), dtype="float32")
    assert Drawing.of(runner.model) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["workers.engine"], "benchmarks.engine.loaded_mixtures"),
        (["herma", "up"], "workers.engine.model_source"),
    ],
)
def test_engines_alone_draw(arguments: list[str], expected: str) -> None:
    """Engines alone draw: the engine that a worker starts is known by its module among its
    arguments.
    """
    path = os.pathsep.join([str(FOLDER), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SAY, *arguments],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == expected
