"""Weights read again into the memory that they had.

Owns how the tensors that a start made are filled again. Must not know where weights come from, nor
why they are read again. At most one layer lies beside those tensors, because a card may hold no
more.
"""

from collections.abc import Callable
from dataclasses import replace

from workers.engine.drafting.drafter import Drafter
from workers.engine.load.placing import placed_like
from workers.engine.models.weights import LayerWeights, ModelWeights
from workers.engine.sleep.weight_tensors import tensors_of

LayerChange = Callable[[LayerWeights], LayerWeights]


def read_again(
    kept: ModelWeights, change: LayerChange | None, read: Callable[[LayerChange], ModelWeights]
) -> None:
    """Fill `kept`. `read` reads the same weights and applies what it is given to each layer, as the
    start applied `change`.
    """
    layers = iter(kept.layers)

    def into(layer: LayerWeights) -> LayerWeights:
        mine = next(layers)
        copy_into(mine, placed_like(layer if change is None else change(layer), mine))
        return mine

    found = read(into)
    copy_into(replace(kept, layers=()), replace(found, layers=()))


def copy_into(kept: ModelWeights | LayerWeights | Drafter, found: object) -> None:
    """Copy each tensor of `found` into the tensor of `kept` at the same place; both have the same
    structure.
    """
    for mine, other in zip(tensors_of(kept), tensors_of(found), strict=True):
        mine.copy_(other)
