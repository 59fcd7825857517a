"""The largest step: as large as any that a scheduler can plan, over a cache of one block."""

from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from config import WorkerConfig
from kernels.attention import LIBRARY_GRAIN, ExtendSegment
from kernels.attention.config import EXTEND_CONFIG, PrefillConfig
from kernels.attention.work import prefill_work
from kernels.linear.choose import Op, choose
from protocol.messages import EngineFacts
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.peak_probe import (
    PeakMeter,
    largest_plan,
    largest_plans,
    room,
    run_largest_steps,
    shallow,
)
from workers.engine.runner import ModelRunner
from workers.engine.settings import probe_facts

CPU = torch.device("cpu")
FACTS = EngineFacts("native", "cpu", "float32", 512, 32, 512, 8, 256, bytes(16))
LARGE = msgspec.structs.replace(FACTS, context_length=40_960, max_seqs=256)
HEADS = {"num_heads": 32, "num_kv": 8}
HALF = torch.bfloat16


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


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
def test_it_runs_over_one_block(tmp_path: Path, family: str) -> None:
    """The largest step runs over one block by the runner itself; a CPU has nothing to measure.
    Where layers keep states, sequences that begin in the middle have none, and what they say is no
    number: no lack of memory.
    """
    write = write_tiny_model if family == "qwen3" else partial(write_family, family=family)
    runner = load_tiny(write(tmp_path))
    facts = msgspec.structs.replace(runner.facts, token_budget=300, max_seqs=4)
    cache = KvCache(runner.model.config, 1, facts.block_size, CPU, torch.float32)
    with PeakMeter(CPU) as meter:
        run_largest_steps(ModelRunner(runner.model, cache, facts, runner.model_dir))
    assert meter.peak_bytes == 0
    assert room(CPU).num_bytes > 0


def test_what_does_not_fit_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner fails the sequences and lives; the probe needs to know."""
    runner = load_tiny(write_tiny_model(tmp_path))

    def forward(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner.model, "forward", forward)
    with pytest.raises(torch.OutOfMemoryError, match="lower token_budget"):
        run_largest_steps(runner)


@pytest.mark.parametrize("token_budget", [1024, 1200, 2048, 8192, 16_384, 20_000])
@pytest.mark.parametrize(
    "config", [PrefillConfig(128, 64, 8, 3, 132), EXTEND_CONFIG], ids=["any", "ours"]
)
def test_the_librarys_attention_is_among_the_largest_steps(
    token_budget: int, config: PrefillConfig
) -> None:
    """Wherever a card leaves such a chunk to it: it gathers a whole window's keys and values."""
    facts = msgspec.structs.replace(LARGE, token_budget=token_budget)
    found = []
    for plan in largest_plans(facts):
        segments = [ExtendSegment(0, c.length, c.start, 0) for c in plan.chunks if c.length > 1]
        found += prefill_work(segments, 0, **HEADS, config=config, library=True).library
    if token_budget < config.library:
        assert not found
        return
    most = max(segment.num_rows for segment in found)
    assert most == token_budget // LIBRARY_GRAIN * LIBRARY_GRAIN
    context = max(segment.start + segment.num_rows for segment in found)
    assert context > facts.context_length - 2 * LIBRARY_GRAIN


@pytest.mark.parametrize("token_budget", [256, 300, 600, 2048, 4096, 8192, 16_384])
@pytest.mark.parametrize("has_wide", [False, True], ids=["library", "ours"])
def test_no_step_leaves_more_in_memory(token_budget: int, *, has_wide: bool) -> None:
    """No smaller step takes more memory for gates and ups and their product: with a few rows less
    the library may multiply them.
    """
    hidden, inner = 4096, 12_288

    def taken(num_rows: int) -> int:
        is_ours = choose(Op.NORM_SWIGLU, num_rows, 2 * inner, hidden, HALF, has_wide=has_wide)
        return num_rows * (inner + hidden if is_ours else 3 * inner)

    facts = msgspec.structs.replace(LARGE, token_budget=token_budget)
    steps = [sum(chunk.length for chunk in plan.chunks) for plan in largest_plans(facts)]
    assert max(steps) == token_budget
    assert max(map(taken, steps)) == max(map(taken, range(1, token_budget + 1)))


@pytest.mark.parametrize(
    ("token_budget", "max_seqs", "context_length"),
    [(8192, 64, 2048), (2048, 3, 512), (2048, 8, 512), (300, 4, 24)],
)
def test_a_window_shorter_than_the_budget_is_filled_by_several(
    token_budget: int, max_seqs: int, context_length: int
) -> None:
    """A window shorter than the budget is filled by several sequences, as a scheduler does with
    prompts that wait: rows take memory, whichever sequence has them.
    """
    limits = {"token_budget": token_budget, "max_seqs": max_seqs, "context_length": context_length}
    most = min(token_budget, max_seqs * (context_length - 1))
    plans = list(largest_plans(msgspec.structs.replace(FACTS, **limits)))
    steps = [sum(chunk.length for chunk in plan.chunks) for plan in plans]
    assert steps[:2] == [most, most]
    assert max(len(plan.chunks) for plan in plans) == max_seqs


@pytest.mark.parametrize(("token_budget", "context_length"), [(1, 512), (300, 24), (600, 512)])
def test_each_of_the_largest_steps_ends_those_before(
    tmp_path: Path, token_budget: int, context_length: int
) -> None:
    """Each of the largest steps ends those before, and they run one after another where that many
    sequences have room, within budget and window.
    """
    runner = load_tiny(write_tiny_model(tmp_path))
    limits = {"token_budget": token_budget, "context_length": context_length, "max_seqs": 4}
    facts = msgspec.structs.replace(runner.facts, **limits)
    cache = KvCache(runner.model.config, 1, facts.block_size, CPU, torch.float32)
    fresh = ModelRunner(runner.model, cache, facts, runner.model_dir)
    for plan in largest_plans(facts):
        assert not fresh.run(plan).failed
        assert fresh.num_sequences == len(plan.chunks)
        assert sum(chunk.length for chunk in plan.chunks) <= token_budget
        assert all(chunk.start + chunk.length < context_length for chunk in plan.chunks)


@pytest.mark.parametrize(("kv_tokens", "context_length"), [(None, 512), (96, 96), (50, 64)])
def test_no_sequence_is_imagined_longer_than_its_keys_and_values(
    tmp_path: Path, kv_tokens: int | None, context_length: int
) -> None:
    """What a step gathers of a window that `kv_tokens` does not hold is no memory that it takes."""
    model = load_tiny(write_tiny_model(tmp_path)).model
    config = WorkerConfig(
        name="w", model="m", serves="m", gateways=(), max_seqs=4, token_budget=32,
        kv_tokens=kv_tokens, max_context=512,
    )  # fmt: skip
    assert probe_facts(config, model).context_length == context_length


def _peak_bytes(model: Network, facts: EngineFacts, model_dir: Path) -> int:
    """What a chunk of 200 tokens takes at the worst moment."""
    cache = KvCache(model.config, 1, facts.block_size, CPU, torch.float32)
    runner = ModelRunner(model, cache, facts, model_dir)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run_largest_steps(runner)
    held, most = 0, 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def test_few_layers_take_as_much_memory_as_all(tmp_path: Path) -> None:
    """Few layers take as much temporary memory as all, so a probe runs through no more."""
    runner = load_tiny(write_tiny_model(tmp_path, num_hidden_layers=6))
    probed = shallow(runner.model)
    assert len(probed.weights.layers) == probed.config.num_layers == 3
    facts = msgspec.structs.replace(runner.facts, token_budget=200, max_seqs=4)
    peaks = [_peak_bytes(model, facts, runner.model_dir) for model in (probed, runner.model)]
    assert peaks[0] == peaks[1] > 0
