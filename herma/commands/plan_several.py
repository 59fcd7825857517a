"""`herma plan MODEL MODEL ...`: which models fit together on a card, and what turns would cost.

Owns the table and its words. The command's other half (`plan.py`) reads the models; the sums are
those of a plan for one model.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from config import DEFAULT_PROFILE, DUMMY_PREFIX
from herma.planned_together import FormNeed, ModelNeed, TogetherSet, largest_sets
from herma.terminal import table_lines
from housekeeping.sizes import bytes_text
from workers.engine.memory.forecast import CONTEXT_BYTES
from workers.loop import aligned

BITS: Final = {"bfloat16": "16 bits", "fp8": "8 bits", "int4": "4 bits", "mxfp4": "MXFP4"}
"""How weights are kept, in words."""

_HEAD: Final = ("model", "weights", "kv", "window", "takes", "of them weights")


class CardAndHost(NamedTuple):
    """The card, where its size is from, and what the host can give now; None if that is unknown."""

    num_bytes: int
    source: str = ""
    host_bytes: int | None = None


def several(models: Sequence[ModelNeed], card: CardAndHost) -> tuple[list[str], bool]:
    """The lines, and whether each of the models fits, alone at least."""
    rows = [
        (one.name, form.weights, "fp8" if form.fp8_kv else "-", f"{one.window:,}",
         bytes_text(form.num_bytes), bytes_text(form.weights_bytes))
        for one in models
        for form in one.forms
    ]  # fmt: skip
    size = f"{bytes_text(card.num_bytes)}{card.source}"
    facts = [
        ("card", f"{size}, {bytes_text(CONTEXT_BYTES)} of them for CUDA, for each engine"),
        ("takes", f"an engine with one whole window; profile {DEFAULT_PROFILE}"),
    ]
    lines = [*aligned(facts), "", *table_lines([_HEAD, *rows])]
    too_large = [one for one in models if one.least.num_bytes > card.num_bytes]
    sets = list(largest_sets(models, card.num_bytes))
    lines += ["", *_verdict(models, sets, too_large, card)]
    if not too_large:
        lines += ["", *_tables(models, sets)]
    return lines, not too_large


def _verdict(
    models: Sequence[ModelNeed],
    sets: Sequence[TogetherSet],
    too_large: Sequence[ModelNeed],
    card: CardAndHost,
) -> Iterator[str]:
    for one in too_large:
        missing = bytes_text(one.least.num_bytes - card.num_bytes)
        window = f"{one.window:,} tokens; --window asks for less"
        yield f"{one.name} does not fit, not even alone: {missing} are missing ({window})."
    if not sets:
        return
    if len(sets[0].places) == len(models):
        yield f"All fit at once: {_set(models, sets[0])}."
        return
    yield "They do not all fit at once. Resident together:"
    for found in sets:
        yield f"- {_set(models, found)}"
    if too_large:
        return
    yield "They take turns (docs/residency.md): the others sleep."
    yield from _asleep(models, sets, card)


def _set(models: Sequence[ModelNeed], one: TogetherSet) -> str:
    parts = [
        f"{models[place].name} ({_in_words(form)})"
        for place, form in zip(one.places, one.forms, strict=True)
    ]
    return f"{' + '.join(parts)}: {bytes_text(one.num_bytes)}"


def _in_words(form: FormNeed) -> str:
    return f"{BITS[form.weights]}{', keys and values in 8' if form.fp8_kv else ''}"


def _asleep(
    models: Sequence[ModelNeed], sets: Sequence[TogetherSet], card: CardAndHost
) -> Iterator[str]:
    """What the sleep of the other models needs of the host, for each way of sleeping."""
    least = min(sets, key=lambda one: _weights(models, one))
    sleeping = sum(one.forms[0].weights_bytes for one in models) - _weights(models, least)
    most = (len(models) - len(least.places)) * card.num_bytes
    yield "Host memory while they sleep, at most:"
    every = sum(one.forms[0].weights_bytes for one in models)
    yield (
        f"- Herma's own engines by native sleep: {bytes_text(every)}, the weights of all, which it "
        "keeps while they are awake too, and up to a quarter of what is free then for cached "
        "prefixes. Without room a wake reads the weights again."
    )
    yield f"- vLLM and SGLang by their own sleep: {bytes_text(sleeping)}, the weights."
    yield (
        f"- any engine by the driver's checkpoint: all that it has on the card, up to "
        f"{bytes_text(most)} if each takes the whole card."
    )
    if card.host_bytes is not None:
        yield f"This host has {bytes_text(card.host_bytes)} to give now."


def _weights(models: Sequence[ModelNeed], one: TogetherSet) -> int:
    return sum(models[place].forms[0].weights_bytes for place in one.places)


def _tables(models: Sequence[ModelNeed], sets: Sequence[TogetherSet]) -> Iterator[str]:
    """The tables of the file: always resident if all fit, else on demand, each in the widest form
    in which it is part of the largest set that has it.
    """
    all_fit = len(sets[0].places) == len(models)
    for place, one in enumerate(models):
        found = next(each for each in sets if place in each.places)
        form = found.forms[found.places.index(place)]
        if place:
            yield ""
        if not all_fit:
            yield "[[models]]"
            yield f'name = "model{place}"'
            yield 'residency = "on-demand"'
            yield ""
        yield "[[workers]]"
        yield f'name = "worker{place}"'
        is_shape = one.name.startswith(DUMMY_PREFIX)
        yield 'model = "..."  # of that shape' if is_shape else f"model = {json.dumps(one.name)}"
        yield f'serves = "model{place}"'
        yield 'device = "cuda:0"'
        if one.has_choice and form.weights != "bfloat16":
            yield f'quantization = "{form.weights}"'
        if form.fp8_kv:
            yield 'kv_dtype = "fp8"'
        yield f"context_length = {one.window}"
        yield f"kv_tokens = {one.window}  # more where the sum leaves room"
