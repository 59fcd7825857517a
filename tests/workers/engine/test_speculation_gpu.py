"""On a card: with `invariant` drafts change no token, in graphs and beside prompts."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from config import DUMMY_PREFIX, WorkerConfig
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood
from tests.workers.engine.invariant_cases import requests, serve
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import dummy_dir
from workers.scheduler import StepPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3-0.6b", {}),
    ("qwen3-8b", {}),
    ("qwen3-8b", {"quantization": "fp8", "kv_dtype": "fp8"}),
]
LAYERS = 2
NUM_REQUESTS = 24
MAX_TOKENS = 64
DEPTHS = (1, 3, 7, 15)
ALL = tuple(range(512))
"""More sequences than run at once."""


def _load(shape: str, room: Path, **changes: Any) -> ModelRunner:
    """A shape with its first layers only: all of a layer's kernels, in a part of the time."""
    config = json.loads((dummy_dir(f"{DUMMY_PREFIX}{shape}") / "config.json").read_text())
    (room / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
    worker = WorkerConfig(
        name="check",
        model=f"{DUMMY_PREFIX}{room}",
        serves="check",
        gateways=(),
        device="cuda",
        max_seqs=32,
        token_budget=1024,
        kv_tokens=65_536,
        context_length=4096,
        **{"invariant": True, "speculation": "auto", **changes},
    )
    return load_runner(worker, lambda *_: None)


def _with_graphs(runner: ModelRunner, drafter: KnownDrafter | None = None) -> ModelRunner:
    """On a cache that was never written, with every graph."""
    bare = fresh_runner(runner)
    steps = DeviceSteps(bare.model, bare.cache, bare.facts, verifies=True, drafter=drafter)
    while steps.prepare(pending_only=False):
        pass
    return ModelRunner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)


@pytest.mark.parametrize(("shape", "changes"), CASES, ids=str)
def test_drafts_change_no_token(shape: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Greedy and drawn, right drafts and wrong ones, launched kernel by kernel and in graphs."""
    runner = _load(shape, tmp_path, **changes)
    asked = requests(NUM_REQUESTS, MAX_TOKENS, runner.model.config.vocab_size, 300)
    expected = serve(Drive(fresh_runner(runner), looks_ahead=True), asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    captured, used = _with_graphs(runner), 0
    for depth in DEPTHS:
        for mood in (Mood.RIGHT, Mood.MIXED):
            for stepping in (fresh_runner(runner), captured):
                stepping.run(StepPlan(0, (), (), ALL))  # the scheduler of those alone is gone
                proposer = HostDrafts(texts, depth, mood, vary=mood is Mood.MIXED)
                drive = Drive(stepping, looks_ahead=True, proposer=proposer)
                answers = serve(drive, asked)
                wrong = [n for n, answer in enumerate(answers) if answer != expected[n]]
                assert not wrong, (depth, mood, stepping is captured, wrong)
                used += stepping.used_graph
                if mood is Mood.RIGHT:
                    assert all(drafted == right for drafted, right in proposer.accepted)
    assert used
    del runner, captured
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("invariant", [False, True], ids=["moved on the card", "by the host"])
def test_steps_ahead_of_accepted_drafts(invariant: bool, tmp_path: Path) -> None:
    """Launched before it is known how many drafts are accepted, they say what others do. In
    float32: steps of other sizes round otherwise, which changes no token there.
    """
    runner = _load("qwen3-0.6b", tmp_path, dtype="float32", invariant=invariant)
    asked = requests(8, MAX_TOKENS, runner.model.config.vocab_size, 300)
    expected = serve(Drive(fresh_runner(runner), looks_ahead=True), asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drafter = KnownDrafter(texts, 7, Mood.MIXED, LAYERS)
    proposer, captured = CardDrafts(7), _with_graphs(runner, drafter)
    assert serve(Drive(captured, looks_ahead=True, proposer=proposer), asked) == expected
    assert proposer.num_ahead > MAX_TOKENS // 8
    del runner, captured
    gc.collect()
    torch.cuda.empty_cache()
