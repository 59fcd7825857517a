"""`herma plan MODEL`: what a model takes on a card, and what fits beside it, before it is loaded.

Owns the words of the plan of one model; `plan_several.py` has those of several. Must not know how a
model is read, nor which forms it has (`herma/planned_model.py`).
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from config import DEFAULT_PROFILE, DUMMY_PREFIX, INDEX_DRAFTERS
from herma.checks import known_model
from herma.commands.plan_several import BITS, CardAndHost, several
from herma.doctor import this_host
from herma.formats_table import formats_table
from herma.planned_model import (
    LARGEST_CARD,
    PlannedCard,
    PlannedDrafting,
    PlannedForm,
    PlannedModel,
    PlanOptions,
    card_bytes,
    choices_of,
    forecast_of,
    least_card,
    plans_of,
    read_planned,
    this_card,
)
from herma.planned_together import MOST_MODELS, FormNeed, ModelNeed
from herma.terminal import table_lines
from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.engine.memory.forecast import CONTEXT_BYTES, Forecast, vocabulary_bytes
from workers.engine.models.description import ModelDescription
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm
from workers.loop import aligned
from workers.supervisor.card_memory import host_reading

_HEAD: Final = (
    "profile", "weights", "kv", "tokens", "window", "missing", "whole", "seqs", "snapshots",
)  # fmt: skip
_WIDTH: Final = 80
_KEY: Final = re.compile(r"\w+ = ")
_ESCAPE: Final = "\x1b"


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Returns 1 if nothing fits, else 0. Raises `ConfigError`."""
    if arguments.formats:
        if arguments.models:
            raise ConfigError("--formats is about all models: leave MODEL out")
        print("\n".join(_narrow(formats_table())))
        return 0
    if not arguments.models:
        raise ConfigError("name a MODEL, or ask for --formats")
    card = (
        this_card(this_host())
        if arguments.card is None
        else PlannedCard(card_bytes(arguments.card))
    )
    options = PlanOptions(
        arguments.window,
        arguments.head,
        arguments.embedding,
        arguments.speculation,
        arguments.cards,
    )
    if len(arguments.models) > 1:
        lines, fits = several(_needs(arguments.models, options), _shared(card))
        print("\n".join(_narrow(lines)))
        return 0 if fits else 1
    name, _ = known_model(arguments.models[0])
    model = read_planned(name, options)
    lines, fits = report(model, card, options.window)
    print("\n".join(_narrow([*lines, "", *verdict(name, model, card, options)])))
    return 0 if fits else 1


def _needs(models: Sequence[str], options: PlanOptions) -> list[ModelNeed]:
    """What each of several models takes, with the same options. Raises `ConfigError`."""
    if len(models) > MOST_MODELS:
        raise ConfigError(f"a plan has at most {MOST_MODELS} models")
    if options.cards > 1:
        raise ConfigError("--cards is for one model: models that share a card have one each")
    if options.speculation not in ("off", "auto", *INDEX_DRAFTERS):
        raise ConfigError("a drafter's directory is one model's: with several, auto or suffix")
    found = []
    for asked in models:
        name, _ = known_model(asked)
        model = read_planned(name, options)
        longest = model.config.max_position_embeddings
        if options.window is not None and options.window > longest:
            raise ConfigError(f"--window {options.window} is over that of {name}: {longest}")
        found.append(_need(name, model, options.window))
    return found


def _need(name: str, model: PlannedModel, window: int | None) -> ModelNeed:
    """What each form takes, with one whole window."""
    choices = list(choices_of(model, DEFAULT_PROFILE, window))
    found = [forecast_of(model, LARGEST_CARD, choice) for choice in choices]
    forms = [
        FormNeed(choice.weights, choice.fp8_kv, least_card(model, choice), one.weights_bytes)
        for choice, one in zip(choices, found, strict=True)
    ]
    return ModelNeed(name, found[0].window, tuple(forms), model.has_choice)


def _shared(card: PlannedCard) -> CardAndHost:
    reading = host_reading()
    free = None if reading is None else reading.total_bytes - reading.used_bytes
    return CardAndHost(card.num_bytes, card.source, free)


def _narrow(lines: Iterable[str]) -> Iterator[str]:
    """Break lines at a terminal's usual width, and indent the continuation to the text that it
    continues. A key of TOML is copied by people, so it stays on one line, as do a path, a row
    whose first cell is long, and the head of a table, which has styles on a terminal and fits it.
    """
    for line in lines:
        value = line.partition("  ")[2].lstrip()
        indent = " " * (len(line) - len(value) if value else 0)
        if _KEY.match(line) or len(indent) > _WIDTH // 2 or _ESCAPE in line:
            yield line
            continue
        yield from textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


def report(model: PlannedModel, card: PlannedCard, window: int | None) -> tuple[list[str], bool]:
    """The lines, and whether anything fits. Raises `ConfigError` for a window over the model's."""
    longest = model.config.max_position_embeddings
    if window is not None and window > longest:
        raise ConfigError(f"--window {window} is over the model's: at most {longest}")
    plans = list(plans_of(model, card.num_bytes, window))
    lines = [*_facts(model, card, plans), "", *_table(plans)]
    return lines, any(found.whole_windows for _, _, found in plans)


def _ranks(count: int) -> list[tuple[str, str]]:
    if count == 1:
        return []
    return [("ranks", f"{count} such cards (tensor_parallel = {count}); below is one card's share")]


def _facts(model: PlannedModel, card: PlannedCard, plans: list[PlannedForm]) -> list[str]:
    config = model.config
    mixer = config.attention
    heads = f"{mixer.num_heads} heads on {mixer.num_kv_heads} of {mixer.head_dim}"
    shape = f"{config.family}: {config.num_layers} layers of {config.hidden_size}, {heads}"
    weights = {c.weights: f.weights_bytes for _, c, f in plans}
    tokens = {("fp8" if c.fp8_kv else "bfloat16"): f.token_bytes for _, c, f in plans}
    steps = {name: f.step_bytes for name, _, f in plans}
    first = plans[0][2]
    size = f"{bytes_text(card.num_bytes)}{card.source}"
    rows = [
        ("model", f"{shape}, window {config.max_position_embeddings:,}"),
        ("card", f"{size}, {bytes_text(CONTEXT_BYTES)} of them for CUDA"),
        *_ranks(model.ranks),
        ("weights", _by(weights)),
        ("head", _head(config, model.vocabulary)),
        ("keys, values", f"{_by(tokens)} a token{_windows(config, first)}"),
        *_kept_windows(config, plans),
        *_states(config, first),
        ("host cache", _host_cache(tokens)),
        *_drafter(model.drafting),
        ("graphs", f"about {bytes_text(first.graphs_bytes)}"),
        ("largest step", f"about {_by(steps)}"),
    ]
    return aligned(rows)


def _head(config: ModelDescription, form: VocabularyForm) -> str:
    """What the embedding and the head take of the card, and a form in which they take less."""
    embedding, head = map(bytes_text, vocabulary_bytes(config, form))
    is_shared = config.tied and form.head == "auto"
    at = "in the host's memory" if form.on_host else f"{embedding} of them"
    text = f"the embedding itself, {at}" if is_shared else f"{head} of them; embedding {at}"
    if form != AS_STORED or config.head_ranks > 1:
        return text
    both = "--head fp8 --embedding host"
    return f"{text}; {both if is_shared else f'{both}, or one of them,'} takes less"


def _host_cache(tokens: dict[str, int]) -> str:
    """What `cache.host` keeps beyond the card."""
    kept = ", ".join(f"{2**30 // count:,} ({name})" for name, count in tokens.items() if count)
    return f'cache = {{ host = "64GiB" }}; tokens of prefixes for each GiB: {kept}'


def _windows(config: ModelDescription, found: Forecast) -> str:
    count = sum(mixer.window > 0 for mixer in config.attentions)
    if not count or found.window_bytes:
        return ""
    return f" (the {count} layers with a window keep all tokens too)"


def _kept_windows(config: ModelDescription, plans: list[PlannedForm]) -> list[tuple[str, str]]:
    """A row with what a sequence takes in layers that keep keys only for a window."""
    each = {("fp8" if c.fp8_kv else "bfloat16"): f.window_bytes for _, c, f in plans}
    if not any(each.values()):
        return []
    count = sum(mixer.window > 0 for mixer in config.attentions)
    longest = max([mixer.window for mixer in config.attentions])
    text = f"{_by(each)} a sequence more, in {count} layers that keep only their window"
    return [("windows", f"{text} of {longest:,} tokens")]


def _states(config: ModelDescription, found: Forecast) -> list[tuple[str, str]]:
    if not found.state_bytes:
        return [(name, "none: no recurrent layers") for name in ("states", "snapshots")]
    each = bytes_text(found.state_bytes)
    layers = len(config.delta_rules)
    return [
        ("states", f"{each} a sequence, in {layers} recurrent layers"),
        ("snapshots", f"{each} a prefix that a later prompt can go on from"),
    ]


def _drafter(drafting: PlannedDrafting) -> list[tuple[str, str]]:
    """A row for the drafter; none for a model without one."""
    if not drafting.source:
        return []
    wide, fp8 = drafting.wide, drafting.fp8
    parts = []
    if wide.weights_bytes:
        sizes = {"on cards with 8-bit floats": fp8, "else": wide}
        parts.append(_by({name: each.weights_bytes for name, each in sizes.items()}))
        parts.append(f"{bytes_text(wide.token_bytes)} a token")
    if wide.ring_bytes:
        parts.append(f"{bytes_text(wide.ring_bytes)} a sequence")
    return [("drafts", ", ".join([drafting.source, *parts]))]


def _by(found: dict[str, int]) -> str:
    return ", ".join(f"{bytes_text(count)} ({name})" for name, count in found.items())


def _table(plans: Sequence[PlannedForm]) -> list[str]:
    """A line for each profile and dtype, with its setting and what fits."""
    head = _HEAD[:-1] if all(not found.snapshots for _, _, found in plans) else _HEAD
    rows: list[tuple[str, ...]] = [head]
    for name, choice, found in plans:
        own = "-" if choice.weights == "bfloat16" else choice.weights
        setting = name, own, "fp8" if choice.fp8_kv else "-"
        if not found.whole_windows and not found.kv_tokens:
            missing = bytes_text(found.missing_bytes).replace(" ", "")
            rows.append((*setting, "none", "none", missing))
            continue
        missing = "" if found.whole_windows else bytes_text(found.missing_bytes)
        rows.append(
            (
                *setting,
                f"{found.kv_tokens:,}",
                f"{found.window:,}",
                missing.replace(" ", ""),
                str(found.whole_windows),
                str(found.max_seqs),
                str(found.snapshots),
            )[: len(head)]
        )
    return table_lines(rows)


def verdict(
    name: str, model: PlannedModel, card: PlannedCard, options: PlanOptions
) -> Iterator[str]:
    """The best form in words, and the worker's table for it: the profile `balanced`, with as many
    bits as leave room for a whole window, or else the longest window.
    """
    plans = plans_of(model, card.num_bytes, options.window)
    balanced = [plan for plan in plans if plan[0] == DEFAULT_PROFILE]
    whole = [plan for plan in balanced if plan[2].whole_windows]
    some = [plan for plan in balanced if plan[2].kv_tokens]
    if not whole and not some:
        missing = min(found.missing_bytes for _, _, found in balanced)
        yield f"It does not fit: {bytes_text(missing)} are missing in its smallest form."
        return
    _, choice, found = whole[0] if whole else max(some, key=lambda plan: plan[2].window)
    kv = ", keys and values in 8" if choice.fp8_kv else ""
    cut = "" if whole else ", which is not the whole one"
    form = f"{BITS[choice.weights]}{kv}"
    yield f"It fits with weights in {form}: a window of {found.window:,} tokens{cut}."
    yield ""
    yield "[[workers]]"
    yield 'name = "gpu0"'
    is_shape = name.startswith(DUMMY_PREFIX)
    yield 'model = "..."  # of that shape' if is_shape else f"model = {json.dumps(name)}"
    if model.ranks > 1:
        yield f"tensor_parallel = {model.ranks}"
    if model.has_choice and choice.weights != "bfloat16":
        yield f'quantization = "{choice.weights}"'
    if choice.fp8_kv:
        yield 'kv_dtype = "fp8"'
    for key, default in (("head", "auto"), ("embedding", "auto"), ("speculation", "off")):
        value = getattr(options, key)
        if value != default:
            is_table = key == "speculation" and value != "auto"
            shown = json.dumps(value)
            yield f"{key} = " + (f"{{ drafter = {shown} }}" if is_table else shown)
    yield f"context_length = {found.window}"
