"""Every kind of drafter beside its naive form."""

from pathlib import Path
from typing import Any

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
from tests.workers.engine.drafting.naive import Naive, NaiveDFlash, NaiveEagle3, NaiveMtp
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.load import load_drafter
from workers.engine.models.network import Network

WINDOW = 400


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


def made(
    name: str, target: Network, path: Path, window: int = WINDOW, std: float = 0.2
) -> tuple[Drafter, Naive, int]:
    """The drafter, its naive form, and how wide the rows are that it reads; of weights with this
    standard deviation.
    """
    config = CONFIGS[name]
    kind = name.split("-", maxsplit=1)[0].split(".", maxsplit=1)[0].rstrip("23")
    shapes, naive = {
        "dflash": (dflash_shapes, NaiveDFlash),
        "eagle": (eagle3_shapes, NaiveEagle3),
        "mtp": (mtp_shapes, NaiveMtp),
    }[kind]
    tensors = random_drafter(shapes(config), std=std)
    if kind == "eagle":
        tensors |= drafted_ids(config)
    drafter = load_drafter(write_drafter(path / "drafter", config, tensors), target, window)
    shared = [part.cpu() for part in (target.weights.embedding, target.weights.head)]
    head = tensors.get("lm_head.weight", shared[1])
    width = config["hidden_size"] * (len(drafter.taps) or 1)
    return drafter, naive(config, tensors, shared[0], head), width


def naive_drafts(
    naive: Naive, target: Network, taps: Tensor, ids: list[int], depth: int
) -> tuple[list[int], Tensor]:
    if isinstance(naive, NaiveDFlash):
        return naive.draft(taps, ids[-1], depth)
    if isinstance(naive, NaiveMtp):
        taps = target.final_norm(taps)
    assert isinstance(naive, NaiveEagle3 | NaiveMtp)
    return naive.draft(taps, ids[1:], depth)
