"""Which planned models are resident together on a card, and in which forms. Pure.

Owns the choice: the widest forms that fit. Must not know how a need is found, nor how it is shown.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

MOST_MODELS: Final = 8
"""The most models in one plan. Eight models have 256 sets; nobody plans a card with more models
by hand.
"""


class FormNeed(NamedTuple):
    """A form of a model: how weights are kept, whether keys and values are in 8 bits, the bytes of
    a card with which an engine has a whole window, and of these the weights.
    """

    weights: str
    fp8_kv: bool
    num_bytes: int
    weights_bytes: int


class ModelNeed(NamedTuple):
    """A model, its window in tokens, and its forms, the widest first. `has_choice` is whether a
    worker's `quantization` chooses between them: the weights of a checkpoint in 8 or 4 bits stay.
    """

    name: str
    window: int
    forms: tuple[FormNeed, ...]
    has_choice: bool = True

    @property
    def least(self) -> FormNeed:
        """The form that takes the fewest bytes."""
        return min(self.forms, key=lambda one: one.num_bytes)


class TogetherSet(NamedTuple):
    """Models, by their places in the list, that are resident at once in these forms."""

    places: tuple[int, ...]
    forms: tuple[FormNeed, ...]

    @property
    def num_bytes(self) -> int:
        """The memory that the models take together."""
        return sum(one.num_bytes for one in self.forms)


def fit(models: Sequence[ModelNeed], card_bytes: int) -> tuple[FormNeed, ...] | None:
    """The forms in which all models are resident at once; None if they are too large in any. All
    begin as wide as they can be; the one that spares most goes on to its next form.
    """
    chosen = [0] * len(models)
    while sum(one.forms[at].num_bytes for one, at in zip(models, chosen, strict=True)) > card_bytes:
        found = [
            (one.forms[at].num_bytes - one.forms[after].num_bytes, -place, place, after)
            for place, (one, at) in enumerate(zip(models, chosen, strict=True))
            if (after := _next(one, at)) is not None
        ]
        if not found:
            return None
        *_, place, after = max(found)
        chosen[place] = after
    return tuple([one.forms[at] for one, at in zip(models, chosen, strict=True)])


def largest_sets(models: Sequence[ModelNeed], card_bytes: int) -> Iterator[TogetherSet]:
    """The sets of models that are resident at once and to which no other model can come, the
    largest first.
    """
    found: list[frozenset[int]] = []
    for size in range(len(models), 0, -1):
        for places in combinations(range(len(models)), size):
            if any(one.issuperset(places) for one in found):
                continue
            forms = fit([models[place] for place in places], card_bytes)
            if forms is not None:
                found.append(frozenset(places))
                yield TogetherSet(places, forms)


def _next(model: ModelNeed, at: int) -> int | None:
    """The next form that takes less."""
    now = model.forms[at].num_bytes
    later = range(at + 1, len(model.forms))
    return next((place for place in later if model.forms[place].num_bytes < now), None)
