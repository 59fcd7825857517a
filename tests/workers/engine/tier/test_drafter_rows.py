"""A drafter's rows come back from the host with the target's: it drafts as well as before."""

from typing import Any

import pytest

from benchmarks.drive import Drive, fresh_runner
from benchmarks.speculation.proposers import SwitchedProposer
from benchmarks.speculation.texts import loads_for
from config import SpeculationConfig, WorkerConfig
from protocol.sampling import SamplingParams
from tests.fakes.host_tiers import tier_for
from workers.engine.drafting.load import load_drafter
from workers.engine.drafting.speculating import speculation_for
from workers.engine.runner import DraftingSetup, ModelRunner, steps_on
from workers.engine.start import load_runner
from workers.engine.tier.engine_tier import EngineTier, Memories
from workers.model_dir import drafter_dir

MODEL = "builtin:herma-tiny"
DEPTH = 3
NUM_BLOCKS = 24
NUM_PAGES = 160


@pytest.fixture(scope="module", name="bare")
def _bare() -> ModelRunner:
    limits: dict[str, Any] = {"max_seqs": 2, "token_budget": 512, "kv_tokens": 4096}
    config = WorkerConfig(
        "test", MODEL, "test", (), device="cpu", dtype="float32", **limits, max_context=1024
    )
    return load_runner(config, lambda *_: None)


def _drafting(bare: ModelRunner) -> ModelRunner:
    path = drafter_dir(f"{MODEL}/mtp")
    assert path is not None
    runner = fresh_runner(bare)
    drafter = load_drafter(path, runner.model, 1024)
    drafter.take_cache(runner.cache.num_blocks + 1, runner.cache.block_size)
    given = runner.model, runner.cache, runner.facts
    steps = steps_on(*given, drafting=DraftingSetup(True, drafter))
    return ModelRunner(*given, runner.model_dir, steps, verifies=True)


class _Served:
    """Chats, one after the other on a card that holds one, and then again."""

    def __init__(self, runner: ModelRunner, prompts: list[list[int]]) -> None:
        chosen = SpeculationConfig(drafter=f"{MODEL}/mtp", depth=DEPTH)
        config = WorkerConfig("test", MODEL, "test", (), token_budget=1, speculation=chosen)
        proposer = SwitchedProposer(DEPTH)
        self.outputs: list[list[int]] = []
        self.lengths: list[float] = []
        self.found: list[int] = []
        drive = Drive(
            runner, token_budget=256, max_seqs=2, num_blocks=NUM_BLOCKS, proposer=proposer
        )
        for _ in range(2):
            proposer.switch(speculation_for(config, runner))
            for prompt in prompts:
                number = drive.submit(prompt, SamplingParams(max_tokens=40, temperature=0.0))
                drive.finish()
                self.outputs.append(drive.answers[number].outputs)
                self.found.append(drive.answers[number].cached_tokens)
            self.lengths.append(proposer.counts.length)
        drive.check()


def test_a_drafter_drafts_as_well_behind_rows_from_the_host(
    bare: ModelRunner, request: pytest.FixtureRequest
) -> None:
    """A tier without them costs drafts, and no token."""
    sampling = SamplingParams(max_tokens=40, temperature=0.0)
    loads = loads_for(
        MODEL, bare.model_dir, (), count=12, prompt_tokens=0, sampling=sampling, vocab_size=0
    )
    prompts = [list(prompt) for load in loads for prompt in load.prompts]
    prompts = [prompt for prompt in prompts if 400 < len(prompt) < 650][:4]
    runners = [_drafting(bare), _drafting(bare)]
    tiers = [tier_for(runner, NUM_PAGES) for runner in runners]
    tiers[1] = _without_rows(runners[1], tiers[1])
    for tier in tiers:
        request.addfinalizer(tier.close)
    whole, bereft = [_Served(runner, prompts) for runner in runners]
    assert whole.outputs == bereft.outputs
    for served in (whole, bereft):
        assert served.outputs[:4] == served.outputs[4:]
        assert min(served.found[4:]) > 400
    cold, warm = whole.lengths
    assert warm > 0.95 * cold
    assert bereft.lengths[1] < 0.8 * cold


def _without_rows(runner: ModelRunner, tier: EngineTier) -> EngineTier:
    """The tier for the target's blocks alone."""
    memories = Memories((runner.cache,), runner.kept)
    found = EngineTier(memories, tier.layout, None, runner.cache.memories[0].device)
    runner.attach(found)
    return found
