"""The network, its loss and its schedule, each against an independent way to the same."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.fakes.cases import stream
from training.attention import DocumentLayout, document_mask, masked
from training.decode import generate
from training.export import export, round_to_bfloat16
from training.model import Qwen3
from training.optimizer import Optimizer, orthogonal
from training.pack import Packer, TrainingBatch, choose_capacity, document, make_batch
from training.render import load_template, render
from training.schedule import learning_rate_factor
from training.settings import SMOKE, TrainingSettings
from training.tokenizer import train as train_tokenizer

VOCAB_SIZE = 300
ROW_LENGTH = 64


@pytest.fixture(name="network")
def _network() -> Qwen3:
    torch.manual_seed(0)
    network = Qwen3(SMOKE.shape, VOCAB_SIZE, masked)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape) * (0.2 if parameter.ndim == 2 else 0.1)
        parameter.data.copy_(noise + ("norm" in name))
    round_to_bfloat16(network)
    return network


def _batch(seed: int = 0) -> TrainingBatch:
    """A row of three documents and padding."""
    rng = np.random.default_rng(seed)
    packer = Packer(ROW_LENGTH, pad_id=0)
    parts = [([int(i) for i in rng.integers(1, VOCAB_SIZE, n)], n % 2 == 1) for n in (9, 5, 11, 7)]
    texts = [document([parts[0], parts[1]]), document([parts[2]]), document([parts[3]])]
    for text in texts:
        assert not list(packer.add(text))
    row = next(row for _ in range(20) for row in packer.add(document([([1] * 60, True)])))
    rows = row.reshape(1, -1)
    batch = make_batch(rows, choose_capacity(rows, 1))
    assert batch is not None
    return batch


def _inputs(batch: TrainingBatch) -> tuple[torch.Tensor, torch.Tensor, tuple[DocumentLayout]]:
    tokens, positions, bounds = (torch.from_numpy(array) for array in batch[:3])
    mask = document_mask(positions, ROW_LENGTH)
    return tokens, positions, (DocumentLayout(bounds, mask, ROW_LENGTH, len(tokens)),)


def test_every_document_is_alone(network: Qwen3, tmp_path: Path) -> None:
    """Every document is alone: in a packed row its logits are those of transformers for it
    alone.
    """
    tokenizer = train_tokenizer(["abc"], 300)
    export(network, tokenizer, load_template(), tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = _batch()
    with torch.no_grad():
        hidden = network(*_inputs(batch))
        ours = hidden @ network.model.embed_tokens.weight.T
        starts = sorted(set(batch.bounds.tolist()))
        assert len(starts) > 2
        for start, end in pairwise(starts):
            ids = torch.from_numpy(batch.tokens[start:end]).long()[None]
            torch.testing.assert_close(ours[start:end], theirs(ids).logits[0], rtol=1e-4, atol=1e-4)


def test_a_long_row_is_attended_apart(network: Qwen3) -> None:
    """Rows and a long one behind them give what each gives alone."""
    batch = _batch()
    tokens, positions, (rows,) = _inputs(batch)
    size = 2 * ROW_LENGTH
    long_tokens, long_positions = torch.randint(1, VOCAB_SIZE, (size,)), torch.arange(size)
    mask = document_mask(long_positions, size)
    long = DocumentLayout(torch.tensor([0, size], dtype=torch.int32), mask, size, size)
    with torch.no_grad():
        both = network(
            torch.cat([tokens, long_tokens]), torch.cat([positions, long_positions]), (rows, long)
        )
        torch.testing.assert_close(both[:ROW_LENGTH], network(tokens, positions, (rows,)))
        torch.testing.assert_close(both[ROW_LENGTH:], network(long_tokens, long_positions, (long,)))


def test_the_loss_is_the_mean_over_trained_tokens(network: Qwen3) -> None:
    """Untrained tokens and padding count for nothing."""
    batch = _batch()
    inputs = _inputs(batch)
    sources, targets = (torch.from_numpy(array).long() for array in batch[4:])
    loss, entropy = network.loss(*inputs, sources, targets, 0.0)
    kept = targets >= 0
    logits = network(*inputs) @ network.model.embed_tokens.weight.T
    expected = torch.nn.functional.cross_entropy(logits[sources[kept]], targets[kept])
    assert 0 < int(kept.sum()) < ROW_LENGTH
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(entropy, expected)
    with_penalty, _ = network.loss(*inputs, sources, targets, 1e-2)
    assert with_penalty > loss


def test_the_decoder_follows_the_network(network: Qwen3) -> None:
    """Greedy answers over a cache, in batches of mixed lengths, equal those without a cache."""
    rng = np.random.default_rng(1)
    prompts = [[int(i) for i in rng.integers(1, VOCAB_SIZE, n)] for n in (3, 17, 1, 30)]
    answers = generate(network, prompts, 8, eos_id=7)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for token in answer:
            positions = torch.arange(len(ids))
            mask = document_mask(positions, len(ids))
            layout = DocumentLayout(positions, mask, len(ids), len(ids))
            with torch.no_grad():
                hidden = network(torch.tensor(ids), positions, (layout,))[-1]
            assert token == int((network.model.embed_tokens.weight @ hidden).argmax())
            ids.append(token)
        assert len(answer) == 8 or answer[-1] == 7


def test_training_lowers_the_loss_of_real_cases() -> None:
    """Twenty steps over rendered cases take the loss far below that of a uniform guess."""
    torch.manual_seed(0)
    template = load_template()
    cases = [render(case, template) for case, _ in zip(stream(1), range(400), strict=False)]
    tokenizer = train_tokenizer(["".join(text for text, _ in case) for case in cases], 400)
    packer = Packer(ROW_LENGTH, pad_id=0)
    rows = np.stack(
        [
            row
            for case in cases
            for row in packer.add(document([(tokenizer.encode(t).ids, on) for t, on in case]))
        ]
    )
    network = Qwen3(SMOKE.shape, tokenizer.get_vocab_size(), masked)
    optimizer = Optimizer(network, muon_lr=0.02, adam_lr=0.004, weight_decay=0.02)
    capacity = choose_capacity(rows, 8)
    losses = []
    for step in range(20):
        batch = make_batch(rows[8 * step % 64 : 8 * step % 64 + 8], capacity)
        assert batch is not None
        sources, targets = (torch.from_numpy(array).long() for array in batch[4:])
        loss, entropy = network.loss(*_inputs(batch), sources, targets, 1e-4)
        torch.autograd.backward(loss)
        optimizer.step(1.0)
        losses.append(float(entropy))
    assert losses[0] == pytest.approx(math.log(tokenizer.get_vocab_size()), rel=0.05)
    assert losses[-1] < 0.6 * losses[0]


def test_orthogonal_matrices() -> None:
    """The update's singular values are near 1, for tall and for wide matrices."""
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert 0.3 < float(values.min()) <= float(values.max()) < 1.4


def test_the_learning_rate_rises_holds_and_ends_at_zero() -> None:
    """A function of the share that is over, within [0, 1] even beyond the end."""
    settings = TrainingSettings()
    factor = [learning_rate_factor(i / 1000, settings.warm_up, settings.decay) for i in range(1101)]
    assert factor[0] == 0.0
    assert max(factor) == 1.0
    assert factor[200] == 1.0
    assert factor[999] < 0.01
    assert set(factor[1000:]) == {0.0}
    peak = factor.index(1.0)
    assert factor[: peak + 1] == sorted(factor[: peak + 1])
    assert factor[peak:] == sorted(factor[peak:], reverse=True)
