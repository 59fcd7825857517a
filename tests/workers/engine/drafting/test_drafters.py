"""Each drafter drafts what its naive form drafts, whatever the passes it takes to get there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.tiny_drafters import (
    DFLASH,
    EAGLE3,
    MTP,
    dflash_shapes,
    drafted_ids,
    eagle3_shapes,
    mtp_shapes,
    random_drafter,
    write_drafter,
)
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.drafting.feed import Feed
from tests.workers.engine.drafting.naive import Naive, NaiveDFlash, NaiveEagle3, NaiveMtp
from workers.engine.drafting.drafter import Drafted, Drafter
from workers.engine.drafting.load import load_drafter
from workers.engine.models.network import Network

WINDOW = 400
NUM_STATES = 50
TIE = 1e-4
"""Drafts are compared where the best logit leads by so much: engines round, naive forms do not."""


def _dflash(**own: Any) -> dict[str, Any]:
    return {**DFLASH, "dflash_config": {**DFLASH["dflash_config"], **own}}


SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 12, "selector_top_k": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "dflash": DFLASH,
    "dflash-sliding": {
        **DFLASH, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20,
    },
    "dflash-causal": {**DFLASH, "is_causal": True},
    "dflash-anchor": _dflash(sample_from_anchor=True),
    "dflash2": _dflash(**SECOND),
    "eagle3": EAGLE3,
    "eagle3.1": {**EAGLE3, "norm_output": True, "norm_before_residual": True},
    "mtp": MTP,
}  # fmt: skip


@pytest.fixture(scope="module", name="target")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Network:
    path = write_tiny_model(tmp_path_factory.mktemp("target"), num_hidden_layers=5)
    return load_tiny(path, kv_tokens=64).model


def _made(name: str, target: Network, path: Path) -> tuple[Drafter, Naive, int]:
    """The drafter, its naive form, and how wide the rows are that it reads."""
    config = CONFIGS[name]
    kind = name.split("-", maxsplit=1)[0].split(".", maxsplit=1)[0].rstrip("23")
    shapes, naive = {
        "dflash": (dflash_shapes, NaiveDFlash),
        "eagle": (eagle3_shapes, NaiveEagle3),
        "mtp": (mtp_shapes, NaiveMtp),
    }[kind]
    tensors = random_drafter(shapes(config))
    if kind == "eagle":
        tensors |= drafted_ids(config)
    drafter = load_drafter(write_drafter(path / "drafter", config, tensors), target, WINDOW)
    head = tensors.get("lm_head.weight", target.weights.head)
    width = config["hidden_size"] * (len(drafter.taps) or 1)
    return drafter, naive(config, tensors, target.weights.embedding, head), width


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_drafts_are_those_of_the_naive_form(name: str, target: Network, tmp_path: Path) -> None:
    """Prompts in chunks, several sequences at once, garbage behind every accepted draft."""
    drafter, naive, width = _made(name, target, tmp_path)
    feed = Feed(drafter, width, count=2, seed=5, vocab=target.config.vocab_size)
    for story, length in zip(feed.stories, (37, 3), strict=True):
        feed.prompt(story, length, chunks=2)
    num_compared = 0
    for _ in range(NUM_STATES // 2):
        depth = feed.rng.randint(1, min(drafter.max_depth, 7))
        drafted = feed.verify(depth, [feed.rng.randint(0, depth) for _ in feed.stories])
        for row, story in enumerate(feed.stories):
            ids, logits = _naive(naive, target, story.taps, story.ids, depth)
            assert drafted.ids[row].tolist() == ids
            num_compared += 1
            if name != "dflash2":
                _check_confidence(drafted, row, logits)
    assert num_compared == NUM_STATES


def _naive(
    naive: Naive, target: Network, taps: Tensor, ids: list[int], depth: int
) -> tuple[list[int], Tensor]:
    if isinstance(naive, NaiveDFlash):
        return naive.draft(taps, ids[-1], depth)
    if isinstance(naive, NaiveMtp):
        taps = target.final_norm(taps)
    assert isinstance(naive, NaiveEagle3 | NaiveMtp)
    return naive.draft(taps, ids[1:], depth)


def _check_confidence(drafted: Drafted, row: int, logits: Tensor) -> None:
    assert drafted.confidence is not None
    best = logits.softmax(-1).amax(-1)
    torch.testing.assert_close(drafted.confidence[row].double(), best, atol=1e-4, rtol=1e-3)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dflash", "mtp", "eagle3"])
def test_rows_that_were_refused_are_never_seen(name: str, target: Network, tmp_path: Path) -> None:
    """Keys and values behind the accepted tokens may be anything, NaN too."""
    drafter, _, width = _made(name, target, tmp_path)
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
        drafter, naive, _ = _made(name, target, tmp_path / name)
        own = sum(tensor.numel() * 4 for tensor in naive.weights.values())
        assert own * 0.8 < drafter.num_bytes < own * 1.5
        layers = naive.config["num_hidden_layers"] if name == "dflash" else 1
        assert drafter.token_bytes == layers * 2 * 3 * 16 * 4
