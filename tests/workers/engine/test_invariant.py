"""With `invariant` a sequence's tokens depend on nothing but itself: to the bit, on a CPU."""

import random
from array import array
from pathlib import Path

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from config import WorkerConfig
from protocol.messages import INVARIANT
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import conditions, differing, hidden_of, requests, serve
from tests.workers.engine.step_cases import as_on_card
from workers.engine.graphs.capture import run_again
from workers.engine.runner import ModelRunner
from workers.loop import start_table
from workers.scheduler import Chunk, SequenceStart, StepPlan

VOCAB_SIZE = 151
FEW_BLOCKS = 24

FAMILIES = {
    "glm4_moe_lite": False,
    "deepseek_v3": True,
    "gemma4": True,
    "gemma4-experts": True,
    "gemma4-e": False,
    "gemma3": True,
    "gpt_oss": True,
    "qwen3_moe": True,
}
"""What is equal to the bit beside the plain network: latents, heads of two sizes, side inputs,
experts, sinks; and which come with the slow tests.
"""


@pytest.fixture(name="runner", scope="module")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    # An odd width: its elements do not fill a processor's vectors.
    model_dir = write_tiny_model(tmp_path_factory.mktemp("model"), intermediate_size=100)
    return load_tiny(model_dir, block_size=16, kv_tokens=8192, max_seqs=16, invariant=True)


def test_an_engine_says_so(runner: ModelRunner) -> None:
    """An engine that drafts from its own head says so in its facts and in the table of its start;
    other engines cannot be asked for it.
    """
    assert INVARIANT in runner.facts.capabilities
    assert ", invariant" in start_table(runner.facts, "tiny", None, [], None)[0]
    with pytest.raises(ValueError, match="`invariant` is for engine"):
        WorkerConfig("a", "b", "c", (), token_budget=64, engine="synthetic", invariant=True)


@pytest.mark.parametrize("is_card", [False, True])
def test_hidden_states_are_equal_to_the_bit(runner: ModelRunner, is_card: bool) -> None:
    """However a prompt is cut into chunks, and whatever stands beside it."""
    rng = random.Random(2)
    ids = [rng.randrange(VOCAB_SIZE) for _ in range(300)]

    def hidden(sizes: list[int], others: int = 0) -> torch.Tensor:
        fresh = fresh_runner(runner)
        return hidden_of(as_on_card(fresh) if is_card else fresh, ids, sizes, others)

    whole = hidden([300])
    for sizes in ([1] * 20 + [280], [37, 1, 15, 130, 117], [299, 1]):
        for others in (0, 5):
            assert torch.equal(hidden(sizes, others), whole)


def test_answers_are_equal_under_all_conditions(runner: ModelRunner) -> None:
    """Sampled and greedy: alone, together, cached, in short chunks, preempted, resumed."""
    found = conditions(runner, requests(6, 64, VOCAB_SIZE, 150), FEW_BLOCKS)
    assert set(differing(found).values()) == {0}, differing(found)


def test_steps_of_a_card_are_those_of_the_host(runner: ModelRunner) -> None:
    """Decodes are segments there, captured or not."""
    asked = requests(6, 12, VOCAB_SIZE, 60)
    expected = serve(Drive(fresh_runner(runner)), asked)
    assert serve(Drive(as_on_card(fresh_runner(runner))), asked) == expected
    assert serve(Drive(as_on_card(fresh_runner(runner), run_again)), asked) == expected


@pytest.fixture(
    name="family",
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if is_slow else ())
        for name, is_slow in FAMILIES.items()
    ],
)
def _family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ModelRunner:
    model_dir = write_family(tmp_path_factory.mktemp("model"), request.param)
    return load_tiny(model_dir, block_size=16, kv_tokens=8192, max_seqs=16, invariant=True)


@pytest.mark.parametrize("is_card", [False, True])
def test_every_kind_of_attention_is_equal_to_the_bit(family: ModelRunner, *, is_card: bool) -> None:
    """Logits of a prompt in any chunks, beside others, and as steps of a card."""
    rng = random.Random(3)
    ids = [rng.randrange(VOCAB_SIZE) for _ in range(200)]

    def logits(sizes: list[int], others: int = 0) -> torch.Tensor:
        fresh = fresh_runner(family)
        hidden = hidden_of(as_on_card(fresh) if is_card else fresh, ids, sizes, others)
        return family.model.logits(hidden)

    whole = logits([200])
    for sizes, others in (([1] * 20 + [180], 0), ([37, 1, 15, 130, 17], 5), ([199, 1], 5)):
        assert torch.equal(logits(sizes, others), whole)


def test_answers_of_every_kind_of_attention(family: ModelRunner) -> None:
    """Sampled and greedy: under all conditions, and as steps of a card, captured or not."""
    asked = requests(6, 24, VOCAB_SIZE, 150)
    found = conditions(family, asked, FEW_BLOCKS // 2)
    assert set(differing(found).values()) == {0}, differing(found)
    for capture in (None, run_again):
        runner = fresh_runner(family)
        card = as_on_card(runner) if capture is None else as_on_card(runner, capture)
        assert serve(Drive(card), asked) == found["alone"]


@pytest.mark.parametrize("name", ["glm4_moe_lite", "deepseek_v3"])
def test_caches_of_latents_are_equal_to_the_bit(tmp_path: Path, name: str) -> None:
    """What a prompt and its answer leave in the cache: cold and alone, and behind the cached half
    of it, in other chunks, beside another sequence.
    """
    model_dir = write_family(tmp_path, name)
    runner = load_tiny(model_dir, block_size=16, kv_tokens=1024, invariant=True)
    rng = random.Random(4)
    prompt = array("I", [rng.randrange(VOCAB_SIZE) for _ in range(100)])
    other = array("I", [rng.randrange(VOCAB_SIZE) for _ in range(60)])
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    own = list(range(8)), [*range(4), *range(10, 14)]
    starts = [SequenceStart(seq, prompt, len(prompt), greedy, seed=0) for seq in (0, 1)]
    beside = SequenceStart(2, other, len(other), greedy, seed=0)
    for seq, sizes in ((0, [100, *[1] * 10]), (1, [20, 1, 15, *[1] * 10])):
        begun, done = (starts[seq], *[beside] * seq), 64 * seq
        for step, size in enumerate(sizes):
            last = done + size >= len(prompt)
            chunks = [Chunk(seq, done, size, tuple(own[seq]), samples=last)]
            if seq:  # the other one's prompt, three tokens a step
                chunks.append(Chunk(2, 3 * step, 3, tuple(range(20, 28)), samples=False))
            runner.run(StepPlan(0, begun, tuple(chunks), ()))
            begun, done = (), done + size
    for latents, _ in runner.cache.layers:
        cold, behind = (latents[blocks].flatten(0, 1)[:110] for blocks in own)
        assert cold.count_nonzero() > 100 * cold.shape[-1]
        assert torch.equal(cold, behind)
