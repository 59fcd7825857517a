"""Experts in MXFP4, as kernels in CUDA C++ read them.

Owns which of a model's layers are changed so, at a start and again at a wake. Must not know where
bits go (`kernels.mxfp4.placing`).
"""

from dataclasses import replace

import torch

from kernels.experts import reads_placed
from kernels.mxfp4 import Mxfp4Weight, place
from workers.engine.models.description import Experts, ModelDescription
from workers.engine.models.weights import LayerWeights, ModelWeights


def place_experts(
    shape: ModelDescription, weights: ModelWeights, dtype: torch.dtype
) -> ModelWeights:
    """The same weights in the same memory, experts placed where nothing else reads them; those that
    are given are not valid any more.
    """
    layers = list(weights.layers)
    for number, (layer, own) in enumerate(zip(shape.layers, layers, strict=False)):
        mlp = layer.mlp
        if isinstance(mlp, Experts) and reads_placed(own.gate_up, own.down, mlp.routing, dtype):
            layers[number] = _placed(own)
    return replace(weights, layers=tuple(layers))


def placed_like(layer: LayerWeights, kept: LayerWeights) -> LayerWeights:
    """A layer that was read again, its experts placed if those of `kept` are."""
    is_placed = isinstance(kept.gate_up, Mxfp4Weight) and kept.gate_up.is_placed
    return _placed(layer) if is_placed else layer


def _placed(layer: LayerWeights) -> LayerWeights:
    assert isinstance(layer.gate_up, Mxfp4Weight)
    assert isinstance(layer.down, Mxfp4Weight)
    return replace(layer, gate_up=place(layer.gate_up), down=place(layer.down))
