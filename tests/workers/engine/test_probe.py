"""The largest step: as large as any that a scheduler can plan, over a cache of one block."""

from pathlib import Path

import msgspec
import pytest
import torch

from protocol.messages import EngineFacts
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.kv_cache import KvCache
from workers.engine.probe import PeakMeter, largest_plan, room, run_largest_step
from workers.engine.runner import Runner

CPU = torch.device("cpu")
FACTS = EngineFacts("native", "cpu", "float32", 512, 32, 512, 8, 256, bytes(16))


@pytest.mark.parametrize(
    ("token_budget", "max_seqs", "context_length"),
    [(256, 8, 512), (4, 8, 512), (8, 8, 512), (1, 1, 2), (4096, 8, 512), (256, 1, 100)],
)
def test_the_largest_plan_is_as_large_as_any(
    token_budget: int, max_seqs: int, context_length: int
) -> None:
    """The whole budget, a chunk at the end of the window, and every sequence samples."""
    limits = {"token_budget": token_budget, "max_seqs": max_seqs, "context_length": context_length}
    facts = msgspec.structs.replace(FACTS, **limits)
    plan = largest_plan(facts)
    long = max(plan.chunks, key=lambda chunk: chunk.length)
    rest = min(max_seqs, token_budget) - 1
    assert len(plan.chunks) == rest + 1
    assert long.start + long.length == context_length - 1
    assert long.length == min(token_budget - rest, context_length - 1)
    assert all(chunk.samples for chunk in plan.chunks)
    assert {block for chunk in plan.chunks for block in chunk.block_ids} == {0}


def test_it_runs_over_one_block(tmp_path: Path) -> None:
    """Through the runner's own door; a CPU has nothing to measure."""
    runner = load_tiny(write_tiny_model(tmp_path))
    facts = msgspec.structs.replace(runner.facts, token_budget=300, max_seqs=4)
    cache = KvCache(runner.model.config, 1, facts.block_size, CPU, torch.float32)
    with PeakMeter(CPU) as meter:
        run_largest_step(Runner(runner.model, cache, facts, runner.model_dir))
    assert meter.peak_bytes == 0
    assert room(CPU).num_bytes > 0


def test_what_does_not_fit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner fails the sequences and lives; the probe needs to know."""
    runner = load_tiny(write_tiny_model(tmp_path))

    def forward(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner.model, "forward", forward)
    with pytest.raises(torch.OutOfMemoryError, match="lower token_budget"):
        run_largest_step(runner)
