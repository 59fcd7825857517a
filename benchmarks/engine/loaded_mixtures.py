"""Lets routers of mixtures that are loaded from files draw their experts.

Owns the tensors that it adds to loaded weights. Must not know how a router draws
(`kernels.experts.Drawn`), or which server the model belongs to.
"""

from dataclasses import replace
from typing import Final

import torch

from kernels.experts import DRAWN_TILES, Drawn
from workers.engine.load.report import Report
from workers.engine.model_source import ModelSource
from workers.engine.models.weights import LayerWeights, ModelWeights

_KEPT_ROWS: Final = 256
"""The rows of a step whose experts can be counted."""


def draw_what_is_loaded() -> None:
    """Let every mixture that this process loads from now on draw its experts. The engine that
    serves the mixture is not changed.
    """
    load = ModelSource.load

    def loaded(source: ModelSource, report: Report) -> ModelWeights:
        weights = load(source, report)
        mixtures = source.shape.mixtures
        if not mixtures:
            return weights
        state = torch.zeros(1 + DRAWN_TILES, dtype=torch.int32, device=source.device)
        state[0] = 1  # from the first step on
        size = _KEPT_ROWS, mixtures[0].routing.num_active
        return replace(
            weights, layers=tuple(_drawing(layer, state, size) for layer in weights.layers)
        )

    ModelSource.load = loaded  # type: ignore[method-assign]


def _drawing(layer: LayerWeights, state: torch.Tensor, size: tuple[int, int]) -> LayerWeights:
    if layer.experts is None:
        return layer
    kept = torch.zeros(size, dtype=torch.int32, device=state.device)
    return replace(layer, experts=layer.experts._replace(drawn=Drawn(state, kept)))
