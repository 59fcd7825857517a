"""Drafters are trained to draft what the model says, and the engine drafts what was trained."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.attention import Segment, plan_attention
from tests.fakes.pairs import seldom
from tests.fakes.tiny_models import load_tiny
from training.attention import masked
from training.drafters.examples import ExampleChoice, Examples, examples
from training.drafters.files import write
from training.drafters.networks import BLOCK, Mtp, TrainedDFlash, TrainedDrafter
from training.drafters.train import DraftQuality, reached, train
from training.export import export, round_to_bfloat16
from training.model import Qwen3
from training.pack import START, TrainingBatch, choose_capacity, document, make_batch
from training.render import load_template
from training.settings import SMOKE
from training.tokenizer import train as train_tokenizer
from workers.engine.drafting.drafter import DraftStep
from workers.engine.drafting.load import load_drafter

VOCABULARY = 300
ROW = 64
SHAPE = replace(SMOKE.shape, num_layers=4)
TAPS = (0, 2)
REACHED = DraftQuality((0.5,), 1.5, 10)


@pytest.fixture(name="model")
def _model() -> Qwen3:
    torch.manual_seed(0)
    model = Qwen3(SHAPE, VOCABULARY, masked)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape) * (0.2 if parameter.ndim == 2 else 0.1)
        parameter.data.copy_(noise + ("norm" in name))
    round_to_bfloat16(model)
    model.requires_grad_(requires_grad=False)
    return model


def _batch(model: Qwen3) -> TrainingBatch:
    """Two rows of documents, whose answers are what the model says, but for some tokens."""
    rng = np.random.default_rng(3)
    documents = []
    for length in (30, 34, 20, 44):
        ids = rng.integers(1, VOCABULARY, 6).tolist()
        while len(ids) < length:
            one = _alone(model, ids)
            ids.append(one if rng.random() < 0.9 else int(rng.integers(1, VOCABULARY)))
        documents.append(document([(ids[:6], False), (ids[6:], True)]))
    both = np.concatenate(documents).reshape(2, ROW)
    batch = make_batch(both, choose_capacity(both, 2))
    assert batch is not None
    return batch


@torch.no_grad()
def _alone(model: Qwen3, ids: list[int]) -> int:
    """The best token behind `ids`, of which nothing else is known."""
    row = np.array(ids + [0] * (ROW - len(ids)), np.uint16)
    row[0] |= START
    batch = make_batch(row[None], choose_capacity(row[None], 1))
    assert batch is not None
    given = examples(model, batch, ExampleChoice((), 1, 0, ROW), torch.Generator())
    return int((given.last[len(ids) - 1] @ model.model.embed_tokens.weight.T).argmax())


def _examples(model: Qwen3, drafter: TrainedDrafter, most: int = 99) -> Examples:
    choice = ExampleChoice(drafter.taps, drafter.depth, most, ROW)
    return examples(model, _batch(model), choice, torch.Generator().manual_seed(1))


def _drafter(kind: str) -> TrainedDrafter:
    torch.manual_seed(2)
    shape = replace(SHAPE, num_layers=2)
    return Mtp(shape) if kind == "mtp" else TrainedDFlash(shape, TAPS, SHAPE.hidden)


def test_what_counts_is_what_the_model_says(model: Qwen3) -> None:
    """Anchors stand in answers; drafts count up to where the model would say something else, or the
    document ends."""
    batch, drafter = _batch(model), _drafter("dflash")
    given = _examples(model, drafter)
    answers = set((batch.sources[batch.targets >= 0] + 1).tolist())
    assert set(given.anchors.tolist()) <= answers
    assert 0 < int(given.counts.sum()) < given.counts.numel()
    starts = np.flatnonzero(batch.positions == 0).tolist()
    for anchor, labels, counts in zip(given.anchors, given.labels, given.counts, strict=True):
        start = max(at for at in starts if at <= anchor)
        end = min([at for at in starts if at > anchor], default=2 * ROW)
        ids = batch.tokens[start : int(anchor) + 1].tolist()
        for step in range(BLOCK - 1):
            place = int(anchor) + 1 + step
            says = place < end and place in answers and _alone(model, ids) == batch.tokens[place]
            assert bool(counts[step]) == says
            if not says:
                break
            assert labels[step] == batch.tokens[place]
            ids.append(int(labels[step]))


@pytest.mark.parametrize("kind", [*seldom("dflash"), "mtp"])
def test_a_drafter_learns_by_heart(kind: str, model: Qwen3) -> None:
    """All that counts of a batch that it sees again and again."""
    drafter = _drafter(kind)
    given = _examples(model, drafter, most=30)
    before = reached(drafter, model, [given])
    steps = 80 if kind == "mtp" else 40
    assert train(drafter, model, lambda: given, 600.0, steps) == steps
    after = reached(drafter, model, [given])
    assert after.length > before.length + 0.5
    assert after.acceptance[0] > 0.8


@pytest.mark.parametrize("kind", ["dflash", "mtp"])
@torch.inference_mode()
def test_the_engine_drafts_what_was_trained(kind: str, model: Qwen3, tmp_path: Path) -> None:
    """The written drafter, for the written model, behind every anchor."""
    drafter = _drafter(kind)
    drafter.load_state_dict({k: v.bfloat16().to(v.dtype) for k, v in drafter.state_dict().items()})
    tokenizer = train_tokenizer(["abc"], VOCABULARY)
    export(model, tokenizer, load_template(), tmp_path / "model")
    write(tmp_path / "drafter", drafter, model, replace(SHAPE, num_layers=2), 0, REACHED)
    target = load_tiny(tmp_path / "model", kv_tokens=64).model
    engine = load_drafter(tmp_path / "drafter", target, 256)
    engine.take_cache(9, 16)
    given = _examples(model, drafter, most=6)
    streams = list(model.streams(given.tokens, given.positions, _layouts(model, given)))
    for number, anchor in enumerate(given.anchors.tolist()):
        start = int((given.documents == given.documents[anchor]).nonzero()[0])
        rows = slice(start, anchor)
        plan = plan_attention([Segment(0, anchor - start, range(8))], 16, torch.device("cpu"))
        where = torch.tensor([anchor - start])
        drafted = engine.draft(
            DraftStep(
                token_ids=given.tokens[rows],
                next_ids=given.tokens[start + 1 : anchor + 1],
                positions=plan.positions,
                taps=given.taps[rows] if engine.taps else None,
                hidden=streams[-1][rows] if engine.reads_hidden else None,
                plan=plan,
                seqs=(0,),
                rows=where - 1,
                anchors=given.tokens[anchor : anchor + 1],
                anchor_positions=where,
                depth=drafter.depth,
                plan_rows=lambda count, offset, at=anchor - start: plan_attention(  # type: ignore[misc]
                    [Segment(at + offset, count, range(8))], 16, torch.device("cpu")
                ),
            )
        )
        given.labels[number] = drafted.ids[0]  # what an MTP head is given of its own drafts
    logits = drafter(model, given)
    best = logits.topk(2, dim=-1)
    sure = (best.values[..., 0] - best.values[..., 1]) > 1e-3
    assert sure.float().mean() > 0.9
    assert torch.equal(best.indices[..., 0][sure], given.labels[sure])


def _layouts(model: Qwen3, given: Examples) -> tuple:  # type: ignore[type-arg]
    from training.attention import DocumentLayout, document_mask

    starts = torch.ones_like(given.documents)
    starts[1:] = given.documents[1:] - given.documents[:-1]
    mask = document_mask(1 - starts, ROW)
    return (DocumentLayout(torch.zeros(1, dtype=torch.int32), mask, ROW, len(given.tokens)),)
