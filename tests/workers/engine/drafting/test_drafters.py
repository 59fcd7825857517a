"""Each drafter drafts what its naive form drafts, whatever the passes it takes to get there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.drafting.cases import CONFIGS, made, naive_drafts
from tests.workers.engine.drafting.feed import Feed
from tests.workers.engine.drafting.naive import NaiveGatedMtp, NaiveMixedMtp
from workers.engine.drafting.drafter import Drafted
from workers.engine.drafting.load import load_drafter
from workers.engine.models.network import Network

NUM_STATES = 50


@pytest.fixture(scope="module", name="target")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Network:
    path = write_tiny_model(tmp_path_factory.mktemp("target"), num_hidden_layers=5)
    return load_tiny(path, kv_tokens=64).model


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_drafts_are_those_of_the_naive_form(name: str, target: Network, tmp_path: Path) -> None:
    """Prompts in chunks, several sequences at once, garbage behind every accepted draft."""
    drafter, naive, width = made(name, target, tmp_path)
    feed = Feed(drafter, width, count=2, seed=5, vocab=target.config.vocab_size)
    for story, length in zip(feed.stories, (37, 3), strict=True):
        feed.prompt(story, length, chunks=2)
    num_compared = 0
    for _ in range(NUM_STATES // 2):
        depth = feed.rng.randint(1, min(drafter.max_depth, 7))
        drafted = feed.verify(depth, [feed.rng.randint(0, depth) for _ in feed.stories])
        for row, story in enumerate(feed.stories):
            ids, logits = naive_drafts(naive, target, story.taps, story.ids, depth)
            assert drafted.ids[row].tolist() == ids
            num_compared += 1
            if name != "dflash2":
                _check_confidence(drafted, row, logits)
    assert num_compared == NUM_STATES


def _check_confidence(drafted: Drafted, row: int, logits: Tensor) -> None:
    assert drafted.confidence is not None
    best = logits.softmax(-1).amax(-1)
    torch.testing.assert_close(drafted.confidence[row].double(), best, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "naive_form", "changes"),
    [
        ("qwen3_5", NaiveGatedMtp, {}),
        ("qwen3_5_moe", NaiveMixedMtp, {}),
        ("qwen3_next", NaiveMixedMtp, {"mlp_only_layers": [], "norm_topk_prob": True}),
    ],
)
@torch.inference_mode()
def test_a_head_of_a_hybrid_is_in_its_checkpoint(
    family: str, naive_form: type[NaiveGatedMtp], changes: dict[str, Any], tmp_path: Path
) -> None:
    """A head of a hybrid is read from its checkpoint, as Qwen3.5's: norms of 1 + w, heads turned in
    part, gates among the queries, and experts.
    """
    path = write_family(tmp_path / "model", family, **changes)
    config, tensors = add_gated_head(path)
    target = load_tiny(path, kv_tokens=64).model
    drafter = load_drafter(path, target, 400)
    shared = target.weights
    naive = naive_form({**config, "rope_theta": 10_000.0}, tensors, shared.embedding, shared.head)
    feed = Feed(drafter, config["hidden_size"], count=2, seed=4, vocab=target.config.vocab_size)
    for story in feed.stories:
        feed.prompt(story, 21, chunks=2)
    for accepted in ([0, 2], [3, 1], [1, 0], [2, 3]):
        drafted = feed.verify(3, accepted)
        for row, story in enumerate(feed.stories):
            states = target.final_norm(story.taps)
            ids, logits = naive.draft(states, story.ids[1:], 3)
            assert drafted.ids[row].tolist() == ids
            _check_confidence(drafted, row, logits)


@pytest.mark.slow
@torch.inference_mode()
def test_a_long_context_is_seen_to_its_beginning(target: Network, tmp_path: Path) -> None:
    """A context of 60,000 tokens in chunks is seen to its beginning."""
    drafter, naive, width = made("dflash", target, tmp_path, window=61_000)
    feed = Feed(drafter, width, count=1, seed=9, vocab=target.config.vocab_size, blocks=3800)
    (story,) = feed.stories
    feed.prompt(story, 60_000, chunks=8)
    for accepted in (0, 3, 6, 2):
        drafted = feed.verify(6, [accepted])
        ids, logits = naive_drafts(naive, target, story.taps, story.ids, 6)
        best = logits.topk(2).values
        sure = (best[:, 0] - best[:, 1] > 1e-2).tolist()
        assert sum(sure) > 3
        for ours, theirs, is_sure in zip(drafted.ids[0].tolist(), ids, sure, strict=True):
            assert ours == theirs or not is_sure


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dflash", "mtp", "eagle3"])
def test_rows_that_were_refused_are_never_seen(name: str, target: Network, tmp_path: Path) -> None:
    """Keys and values behind the accepted tokens may be anything, NaN too."""
    drafter, _, width = made(name, target, tmp_path)
    drafts = []
    for poisons in (False, True):
        feed = Feed(drafter, width, count=1, seed=3, vocab=target.config.vocab_size)
        feed.prompt(feed.stories[0], 20, chunks=1)
        found = []
        for accepted in (0, 2, 1):
            if poisons:
                _poison(drafter, feed)
            found.append(feed.verify(4, [accepted]).ids)
        drafts.append(torch.cat(found))
    assert torch.equal(*drafts)


def _poison(drafter: Any, feed: Feed) -> None:
    """NaN wherever the story has no accepted token."""
    story = feed.stories[0]
    places = torch.arange(len(story.states))
    blocks = torch.tensor(story.blocks)[places // 16]
    for keys, values in drafter.cache.layers:
        for cache in (keys, values):
            kept = cache[blocks, places % 16].clone()
            cache.fill_(torch.nan)
            cache[blocks, places % 16] = kept


def test_what_weights_and_tokens_take_is_known(target: Network, tmp_path: Path) -> None:
    """The target's embedding and head are not counted again."""
    for name in ("dflash", "mtp", "eagle3"):
        drafter, naive, _ = made(name, target, tmp_path / name)
        own = sum(tensor.numel() * 4 for tensor in naive.weights.values())
        assert own * 0.8 < drafter.num_bytes < own * 1.5
        layers = naive.config["num_hidden_layers"] if name == "dflash" else 1
        num_kv_heads = naive.config["num_key_value_heads"]
        assert drafter.token_bytes == layers * 2 * num_kv_heads * 16 * 4
