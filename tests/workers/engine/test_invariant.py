"""With `invariant` a sequence's tokens depend on nothing but itself: to the bit, on a CPU."""

import random

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from config import WorkerConfig
from protocol.messages import INVARIANT
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import conditions, differing, hidden_of, requests, serve
from tests.workers.engine.step_cases import as_on_card
from workers.engine.graphs.capture import run_again
from workers.engine.runner import ModelRunner
from workers.loop import start_table

VOCAB_SIZE = 151
FEW_BLOCKS = 24


@pytest.fixture(name="runner", scope="module")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    # An odd width: its elements do not fill a processor's vectors.
    model_dir = write_tiny_model(tmp_path_factory.mktemp("model"), intermediate_size=100)
    return load_tiny(model_dir, block_size=16, kv_tokens=8192, max_seqs=16, invariant=True)


def test_an_engine_says_so(runner: ModelRunner) -> None:
    """In its facts and in the table of its start; other engines cannot be asked for it."""
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
