"""Embeddings are those of `transformers`, whatever the steps it takes to get there."""

import json
from array import array
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from protocol.errors import ConfigError
from protocol.messages import Accepted, Embed, Embedding, Finished, Rejected, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.models.config_file import pools_last_token
from workers.engine.runner import ModelRunner
from workers.model_dir import POOLING_NAME
from workers.scheduler import BlockManager, Outgoing, Scheduler, SchedulerLimits

BLOCK = 32
PROMPTS = [[7 * at % 149 + 2 for at in range(length)] for length in (1, 31, 32, 33, 100, 100, 200)]


def _embedding_model(model_dir: Path) -> Path:
    """As the published ones are stored: a network without its head, and no prefix of names."""
    write_tiny_model(model_dir, seed=3, std=0.3)
    weights = model_dir / "model.safetensors"
    tensors = {name.removeprefix("model."): t for name, t in load_file(weights).items()}
    del tensors["lm_head.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    pooling = model_dir / POOLING_NAME
    pooling.parent.mkdir()
    pooling.write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return model_dir


@pytest.fixture(scope="module", name="model_dir")
def _model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _embedding_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", name="runner")
def _runner(model_dir: Path) -> ModelRunner:
    return load_tiny(model_dir)


@pytest.fixture(scope="module", name="expected")
def _expected(model_dir: Path) -> list[torch.Tensor]:
    model = AutoModel.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in PROMPTS]
    return [torch.nn.functional.normalize(state, dim=0) for state in states]


class Driven:
    """A scheduler and its runner; what was sent by request number."""

    def __init__(self, runner: ModelRunner, token_budget: int, size: int | None = None) -> None:
        self._runner = runner
        facts = runner.facts
        limits = SchedulerLimits(
            4,
            token_budget,
            1024,
            16,
            embedding_size=facts.embedding_size if size is None else size,
        )
        self._scheduler = Scheduler(limits, BlockManager(64, BLOCK), ("m",), runner.eos_ids)
        self.values: dict[int, torch.Tensor] = {}
        self.cached: dict[int, int] = {}
        self.finished: dict[int, Finished] = {}
        self.rejected: dict[int, Rejected] = {}

    def embed(self, number: int, prompt: list[int], dimensions: int | None = None) -> None:
        packed = pack_tokens(prompt)
        self.take(Embed(_id(number), 0, "m", packed, dimensions=dimensions))

    def take(self, message: Embed | Submit) -> None:
        self._hear(self._scheduler.submit(1, message, 0.0))

    def run(self) -> None:
        while (plan := self._scheduler.plan()) is not None:
            self._hear(self._scheduler.commit(plan, self._runner.run(plan)))
        self._scheduler.check_integrity()

    def _hear(self, sent: tuple[Outgoing, ...]) -> None:
        for _, message in sent:
            match message:
                case Embedding():
                    values = array("f", message.values)
                    self.values[message.request_id[0]] = torch.tensor(values.tolist())
                case Accepted():
                    self.cached[message.request_id[0]] = message.cached_tokens
                case Finished():
                    self.finished[message.request_id[0]] = message
                case Rejected():
                    self.rejected[message.request_id[0]] = message
                case _:
                    pass


def _id(number: int) -> bytes:
    return bytes([number]) * 16


@pytest.mark.parametrize("token_budget", [512, 48])
def test_embeddings_equal_those_of_transformers(
    runner: ModelRunner, expected: list[torch.Tensor], token_budget: int
) -> None:
    """Embeddings equal those of transformers, in one step or in many chunks, beside each other and
    beside an answer, and with a prompt in the cache.
    """
    driven = Driven(runner, token_budget)
    sampling = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    driven.take(Submit(_id(99), 0, "m", pack_tokens(PROMPTS[4]), b"", sampling, 1))
    for number, prompt in enumerate(PROMPTS):
        driven.embed(number, prompt)
    driven.run()
    for number, wanted in enumerate(expected):
        torch.testing.assert_close(driven.values[number], wanted, atol=1e-5, rtol=1e-4)
        end = driven.finished[number]
        assert (end.reason, end.output_tokens) == ("length", 0)
    assert driven.finished[99].output_tokens == 5
    assert driven.cached[5] > 0 or token_budget == 512


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_card_gives_the_same(model_dir: Path, expected: list[torch.Tensor]) -> None:
    """A card gives the same in float32 to rounding; answers and embeddings take turns in its
    steps.
    """
    runner = load_tiny(model_dir, device="cuda", dtype="float32", kv_tokens=4096)
    driven = Driven(runner, 96)
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    driven.take(Submit(_id(99), 0, "m", pack_tokens(PROMPTS[4]), b"", sampling, 1))
    for number, prompt in enumerate(PROMPTS):
        driven.embed(number, prompt)
    driven.run()
    for number, wanted in enumerate(expected):
        torch.testing.assert_close(driven.values[number], wanted, atol=1e-3, rtol=0)
    assert driven.finished[99].output_tokens == 20


def test_fewer_dimensions_are_normed_anew(
    runner: ModelRunner, expected: list[torch.Tensor]
) -> None:
    """The first numbers; more than there are is refused, and the others go on."""
    driven = Driven(runner, 512)
    driven.embed(0, PROMPTS[3], dimensions=8)
    driven.embed(1, PROMPTS[3], dimensions=runner.facts.embedding_size + 1)
    driven.run()
    wanted = torch.nn.functional.normalize(expected[3][:8], dim=0)
    torch.testing.assert_close(driven.values[0], wanted, atol=1e-5, rtol=1e-4)
    assert "dimensions" in driven.rejected[1].detail


def test_a_model_for_answers_refuses(runner: ModelRunner) -> None:
    """A model for answers refuses a request for embeddings by name, without a step."""
    driven = Driven(runner, 512, size=0)
    driven.embed(0, PROMPTS[0])
    assert driven.rejected[0].detail == "this model gives no embeddings"


def test_another_pooling_is_a_mistake(tmp_path: Path) -> None:
    """Rather than embeddings that mean nothing."""
    pooling = tmp_path / POOLING_NAME
    assert not pools_last_token(tmp_path)
    pooling.parent.mkdir()
    pooling.write_text('{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false}')
    with pytest.raises(ConfigError, match="only the last token's"):
        pools_last_token(tmp_path)
