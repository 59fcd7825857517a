"""Compiles what a drafter launches on a card that is not there: with an `arch` such as 90.

Run as a program, without the interpreter: `card_checks ARCH KIND`. Steps of true sizes over tensors
that have shapes only. Prints one JSON object: the kernels that drafts add, the most shared memory
that one takes in bytes, and the errors.
"""

import json
import os
import sys
from array import array
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from benchmarks.speculation.synthetic import dummy_drafter
from config import WorkerConfig
from kernels.recorder import pretend_device, record_launches
from protocol.sampling import SamplingParams
from tests.workers.engine.compile.card_checks import compiled
from workers.engine.compile.shapes_only import ShapesOnly
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.dummy import draw_weights
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.model_config import read_model_config
from workers.engine.models.network import Network
from workers.engine.runner import Runner
from workers.engine.settings import probe_facts
from workers.model_dir import local_dir
from workers.scheduler import ON_CARD, Chunk, SequenceStart, StepPlan

NOWHERE = torch.device("meta")
LAYERS = 9
BATCHES = (1, 8, 33)
DEPTHS = {"dflash": 15, "mtp": 3}
PROMPT = 128
GREEDY = SamplingParams(max_tokens=100, temperature=0.0)


def main() -> None:
    """With and without a drafter: the difference is what it adds."""
    arch, kind = sys.argv[1:]
    pretend_device(int(arch))
    directory = local_dir("dummy:qwen3-8b")
    assert directory is not None
    worker = WorkerConfig(
        "check", str(directory), "check", (), token_budget=2048, device="cuda", max_seqs=64
    )
    shape = read_model_config(directory)
    few = shape.with_layers(range(LAYERS))
    with record_launches() as recorded, ShapesOnly():
        model = Network(few, draw_weights(few, NOWHERE, torch.bfloat16), 1024)
        facts = probe_facts(worker, model)
        cache = KvCache(few, 100, facts.block_size, NOWHERE, torch.bfloat16)
        _run(Runner(model, cache, facts, directory, DeviceSteps(model, cache, facts, run_again)), 0)
        known = set(recorded)
        drafter = dummy_drafter(kind, model, 1024, fp8=True)
        drafter.take_cache(101, facts.block_size)
        steps = DeviceSteps(model, cache, facts, run_again, drafter=drafter, verifies=True)
        runner = Runner(model, cache, facts, directory, steps)
        while runner.prepare(pending_only=False):
            pass
        for _ in range(2):
            _run(runner, DEPTHS[kind])
            while runner.prepare(pending_only=True):
                pass
    added = [kernel for key, kernel in recorded.items() if key not in known]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        found = list(pool.map(compiled, added))
    report = {
        "count": len(found),
        "names": sorted({name for name, *_ in found}),
        "most_bytes": max(shared for _, shared, _ in found),
        "errors": [error for *_, error in found if error],
    }
    print(json.dumps(report))


def _run(runner: Runner, depth: int) -> None:
    """Prompts, then a step that verifies what was drafted behind them."""
    for batch in BATCHES:
        seqs = range(batch)
        starts = tuple(
            [
                SequenceStart(seq, array("I", bytes(4 * PROMPT + 4)), PROMPT, GREEDY, seq)
                for seq in seqs
            ]
        )
        blocks = tuple(range(1 + (PROMPT + 2 * depth + 1) // runner.facts.block_size))
        first = [Chunk(seq, 0, PROMPT, blocks, True, (), depth) for seq in seqs]
        later = [Chunk(seq, PROMPT, 1, blocks, True, (ON_CARD,) * depth, depth) for seq in seqs]
        for chunk in first:
            runner.launch(StepPlan(0, (starts[chunk.seq],), (chunk,), ()))
        runner.launch(StepPlan(0, (), tuple(later), ()))
        runner.launch(StepPlan(0, (), (), tuple(seqs)))


if __name__ == "__main__":
    main()
