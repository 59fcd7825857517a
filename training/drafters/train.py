"""The training of a drafter: a loss over drafts, an optimizer, a time limit, and what it reaches.

Owns the loop. Must not know the networks, nor files.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from training.drafters.examples import Examples
from training.drafters.networks import TrainedDrafter
from training.model import Qwen3

_RATE: Final = 2e-3
_WARM_UP: Final = 0.04
_CLIP: Final = 1.0
_PROGRESS_S: Final = 10.0
_FADE: Final = {True: 0.6, False: 0.78}
"""What a draft counts beside the one before: FastMTP's 0.6 of a head that feeds itself, exp(-1 / 4)
of a block of 8 (SpecForge)."""


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """The quality of drafts on held-out text: the share that is right at each place, if all earlier
    ones are, and the tokens that a pass of the model yields.
    """

    acceptance: tuple[float, ...]
    length: float
    num_anchors: int


def train(
    drafter: TrainedDrafter,
    model: Qwen3,
    next_examples: Callable[[], Examples],
    seconds: float,
    most: int,
) -> int:
    """Train in place for so long, or `most` steps; returns how many there were."""
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=_RATE, weight_decay=0.01)
    began_at = reported_at = time.monotonic()
    device = next(drafter.parameters()).device
    step, total = 0, torch.zeros((), device=device)
    while (share := max((time.monotonic() - began_at) / seconds, step / most)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(share / _WARM_UP + 0.05, 1.0, (1.0 - share) / (1 - _WARM_UP))
        given = next_examples()
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = _loss(drafter, model, given)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), _CLIP)
        optimizer.step()
        step, total = step + 1, total + loss.detach()
        if time.monotonic() - reported_at > _PROGRESS_S:
            reported_at = time.monotonic()
            print(f"step {step:5d}  {share:4.0%}  mean loss {total / step:.3f}", flush=True)
    return step


def _loss(drafter: TrainedDrafter, model: Qwen3, given: Examples) -> Tensor:
    """Cross-entropy of the tokens that the model would say, the nearest most."""
    logits = drafter(model, given).float()
    losses = F.cross_entropy(logits.flatten(0, 1), given.labels.flatten(), reduction="none")
    fade = _FADE[not drafter.taps] ** torch.arange(drafter.depth, device=logits.device)
    weights = given.counts * fade
    return (losses.view_as(weights) * weights).sum() / weights.sum().clamp(min=1.0)


@torch.no_grad()
def reached(drafter: TrainedDrafter, model: Qwen3, parts: list[Examples]) -> DraftQuality:
    """What the drafter does on `parts`. Drafts count where the model would say the text so far."""
    right = torch.zeros(drafter.depth)
    asked = torch.zeros(drafter.depth)
    lengths, num_anchors = 0.0, 0
    for given in parts:
        hits = (drafter(model, given).argmax(-1) == given.labels) & given.counts
        accepted = hits.long().cumprod(1).float().cpu()
        before = torch.cat((torch.ones(len(accepted), 1), accepted[:, :-1]), 1)
        asked += (before * given.counts.cpu()).sum(0)
        right += accepted.sum(0)
        lengths += float(accepted.sum()) + len(accepted)
        num_anchors += len(accepted)
    shares = (right / asked.clamp(min=1.0)).tolist()
    return DraftQuality(
        tuple([round(share, 3) for share in shares]),
        round(lengths / max(1, num_anchors), 3),
        num_anchors,
    )
