"""Drafters of a known shape with random weights, for benchmarks and dry runs.

Owns the draw of weights. Must not know what the drafter is for.
"""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from workers.engine.drafting.description import DFlashShape, MtpShape, Shape
from workers.engine.drafting.dflash import DFlash, DFlashWeights
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.eagle3 import Eagle3Cell, Eagle3Weights
from workers.engine.drafting.mtp import MtpCell, MtpWeights
from workers.engine.drafting.recurrent import RecurrentDrafter
from workers.engine.models.description import ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.network import Network
from workers.engine.models.weights import ModelWeights


def drawn_drafter(
    shape: Shape, target: Network, window: int, *, fp8: bool, draws_experts: bool = False
) -> Drafter:
    """A drafter of `shape` for `target`, with its embedding and head; otherwise as `load_drafter`
    makes it. With `draws_experts` a mixture of it draws what it chooses, from the first row on.
    """
    hidden, wide = shape.network.hidden_size, target.config.hidden_size
    model = _drawn(shape.network, target, draws_experts=draws_experts)
    if isinstance(shape, DFlashShape):
        fc = _matrix(target, hidden, len(shape.taps) * wide)
        return DFlash(shape, DFlashWeights(model, fc, model.norm), target, window, fp8=fp8)
    if isinstance(shape, MtpShape):
        weights = MtpWeights(model, _matrix(target, hidden, 2 * wide), model.norm, model.norm)
        cell = MtpCell(shape, weights, target, window, fp8=fp8)
        return RecurrentDrafter(cell, target)
    (layer,) = model.layers
    layer = replace(layer, qkv=_matrix(target, layer.qkv.shape[0], 2 * hidden))
    head = _matrix(target, shape.vocab_size, hidden)
    model = ModelWeights(model.embedding, (layer,), model.norm, head)
    fc = _matrix(target, hidden, len(shape.taps) * wide)
    ids = torch.arange(shape.vocab_size, device=target.device)
    own = Eagle3Weights(model, model.norm, fc, ids)
    return RecurrentDrafter(Eagle3Cell(shape, own, target, window), target)


def _drawn(config: ModelDescription, target: Network, *, draws_experts: bool) -> ModelWeights:
    """Drawn layers between the target's embedding and head."""
    shared = target.weights
    small = msgspec.structs.replace(config, vocab_size=1)  # a small embedding, which is not kept
    drawn = draw_weights(small, target.device, shared.embedding.dtype, draws_experts=draws_experts)
    for layer in drawn.layers:
        if layer.experts is not None and layer.experts.drawn is not None:
            layer.experts.drawn.state[:1] = 1
    return ModelWeights(shared.embedding, drawn.layers, drawn.norm, shared.head)


def _matrix(target: Network, rows: int, columns: int) -> Tensor:
    """A random matrix, drawn so that a product keeps the size of a row."""
    like = target.weights.embedding
    empty = torch.empty((rows, columns), dtype=like.dtype, device=like.device)
    return empty if like.is_meta else empty.normal_(0.0, columns**-0.5)
