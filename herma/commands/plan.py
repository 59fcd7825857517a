"""`herma plan MODEL`: what a model takes on a card, and what fits beside it, before it is loaded.

Owns the table of one model, and how models are read; `plan_several.py` has the table of several.
Reads config.json alone, the model's and its drafter's, which it fetches from the hub if need be: no
weights. Of this host's card it reads the memory, where no other card is named.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from config import (
    DEFAULT_PROFILE,
    DUMMY_PREFIX,
    INDEX_DRAFTERS,
    WorkerConfig,
    builtin_config,
    profiles,
)
from herma.checks import known_model
from herma.commands.plan_several import BITS, CardAndHost, several
from herma.doctor import Host, this_host
from herma.formats_table import formats_table
from herma.planned_together import MOST_MODELS, FormNeed, ModelNeed
from herma.terminal import table_lines
from protocol.errors import ConfigError
from workers.engine.drafting.demand import draft_demand
from workers.engine.drafting.description import MtpShape, names_head, read_drafter
from workers.engine.load.checkpoint import INDEX_NAME
from workers.engine.load.kept_modules import NOTHING_KEPT, KeptModules, read_kept
from workers.engine.load.quantize import StoredFormat, stated_in
from workers.engine.memory.forecast import (
    CONTEXT_BYTES,
    NO_DRAFTS,
    DraftDemand,
    Forecast,
    MemoryChoice,
    forecast,
    vocabulary_bytes,
)
from workers.engine.models.description import ModelDescription
from workers.engine.models.model_config import read_model_config
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm
from workers.engine.parallel.shares import Share, config_of
from workers.engine.settings import vocabulary_form
from workers.loop import aligned, bytes_text
from workers.model_dir import CONFIG_NAME, check_form, drafter_dir, local_dir, read_json
from workers.supervisor.card_memory import host_reading

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(gb|gib|)", re.IGNORECASE)
_UNITS: Final = {"gb": 10**9, "gib": 2**30, "": 10**9}
_BLOCK_SIZE: Final = builtin_config().workers[0].block_size

_CARD: Final = ("nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits")
_ASSUMED_CARD: Final = "24GB"

_LARGEST: Final = 2**42
_FINE: Final = 2**20
"""A need is found to the MiB, at most 4 TiB."""

_HEAD: Final = (
    "profile", "weights", "kv", "tokens", "window", "missing", "whole", "seqs", "snapshots",
)  # fmt: skip
_WIDTH: Final = 80
_KEY: Final = re.compile(r"\w+ = ")


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
    if len(arguments.models) > 1:
        lines, fits = several(_needs(arguments), _shared(card))
        print("\n".join(_narrow(lines)))
        return 0 if fits else 1
    name, _ = known_model(arguments.models[0])
    model = _read(name, arguments)
    lines, fits = report(model, card, arguments.window)
    print("\n".join(_narrow([*lines, "", *verdict(name, model, card, arguments)])))
    return 0 if fits else 1


def _read(name: str, arguments: argparse.Namespace) -> PlannedModel:
    """The model as the options say. Raises `ConfigError`."""
    directory = _directory(name, local_dir)
    is_here = local_dir(name) is not None and not name.startswith(DUMMY_PREFIX)
    if is_here and not (directory / INDEX_NAME).exists():
        check_form(directory)  # as a start does; without any weights the model is still to come
    config = read_model_config(directory)
    asked = WorkerConfig(
        "plan", name, "plan", (), 1, head=arguments.head, embedding=arguments.embedding
    )
    form = vocabulary_form(asked, config)
    if arguments.cards > 1:
        if arguments.embedding != "auto":
            raise ConfigError("--cards has no --embedding: leave it out")
        config = config_of(config, Share(0, arguments.cards))
    drafter = _drafter_of(name, arguments.speculation)
    chosen = _drafts(drafter, directory, config, form, arguments.cards)
    return PlannedModel(config, _kept(directory), chosen, form, arguments.cards)


def _needs(arguments: argparse.Namespace) -> list[ModelNeed]:
    """What each of several models takes, with the same options. Raises `ConfigError`."""
    if len(arguments.models) > MOST_MODELS:
        raise ConfigError(f"a plan has at most {MOST_MODELS} models")
    if arguments.cards > 1:
        raise ConfigError("--cards is for one model: models that share a card have one each")
    if arguments.speculation not in ("off", "auto", *INDEX_DRAFTERS):
        raise ConfigError("a drafter's directory is one model's: with several, auto or suffix")
    found = []
    for asked in arguments.models:
        name, _ = known_model(asked)
        model = _read(name, arguments)
        longest = model.config.max_position_embeddings
        if arguments.window is not None and arguments.window > longest:
            raise ConfigError(f"--window {arguments.window} is over that of {name}: {longest}")
        found.append(_need(name, model, arguments.window))
    return found


def _need(name: str, model: PlannedModel, window: int | None) -> ModelNeed:
    """What each form takes, with one whole window."""
    choices = list(_choices(model, DEFAULT_PROFILE, window))
    found = [_forecast(model, _LARGEST, choice) for choice in choices]
    forms = [
        FormNeed(choice.weights, choice.fp8_kv, _least_card(model, choice), one.weights_bytes)
        for choice, one in zip(choices, found, strict=True)
    ]
    return ModelNeed(name, found[0].window, tuple(forms), model.has_choice)


def _least_card(model: PlannedModel, choice: MemoryChoice) -> int:
    """The least card on which an engine has a whole window: found by trying, so that it is what a
    plan of that model alone says.
    """
    low, high = 0, _LARGEST
    while high - low > _FINE:
        middle = (low + high) // 2
        if _forecast(model, middle, choice).whole_windows:
            high = middle
        else:
            low = middle
    return high


def _shared(card: PlannedCard) -> CardAndHost:
    reading = host_reading()
    free = None if reading is None else reading.total_bytes - reading.used_bytes
    return CardAndHost(card.num_bytes, card.source, free)


def _narrow(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a terminal's usual width; what goes on is under the text that it belongs to. A key
    of TOML is copied, so it stays whole, and so do a path and a row whose first cell is a long one.
    """
    for line in lines:
        value = line.partition("  ")[2].lstrip()
        indent = " " * (len(line) - len(value) if value else 0)
        if _KEY.match(line) or len(indent) > _WIDTH // 2:
            yield line
            continue
        yield from textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]


class PlannedDrafting(NamedTuple):
    """What drafts, in words, and what it takes on cards with 8-bit floats and on others."""

    source: str
    wide: DraftDemand = NO_DRAFTS
    fp8: DraftDemand = NO_DRAFTS

    @property
    def larger(self) -> DraftDemand:
        """The card is known by its size alone."""
        return max(self.wide, self.fp8, key=lambda each: each.weights_bytes)


class PlannedModel(NamedTuple):
    """A model, its modules in 16 bits, what drafts for it, and how embedding and head are kept.
    With several `ranks`, `config` is one rank's share.
    """

    config: ModelDescription
    kept: KeptModules = NOTHING_KEPT
    drafting: PlannedDrafting = PlannedDrafting("")
    vocabulary: VocabularyForm = AS_STORED
    ranks: int = 1

    @property
    def has_choice(self) -> bool:
        """Whether `quantization` chooses how weights are kept: those of a checkpoint in 8 or 4
        bits stay, and a start refuses the key for some of them.
        """
        return self.config.stored is StoredFormat.DENSE


def _directory(name: str, find: Callable[[str], Path | None]) -> Path:
    """The directory of a model or a drafter; one of the hub has its configuration alone."""
    directory = find(name)
    if directory is None:
        from workers.engine.load.hub import fetch_config

        directory = fetch_config(name)
    return directory


def _drafter_of(model: str, speculation: str) -> str:
    """The drafter that comes with a built-in model, for "auto"; else `speculation`."""
    if speculation != "auto":
        return speculation
    chosen = WorkerConfig("plan", model, "plan", (), token_budget=1, speculation="auto").drafting
    is_shipped = chosen is not None and chosen.drafter not in INDEX_DRAFTERS
    return chosen.drafter if chosen is not None and is_shipped else speculation


def _drafts(
    speculation: str, directory: Path, config: ModelDescription, form: VocabularyForm, cards: int
) -> PlannedDrafting:
    """As a worker with this `speculation` would choose; of several `cards` one card's share, as
    `config` is. Raises `ConfigError`.
    """
    has_head = names_head(directory)
    if speculation == "off":
        return PlannedDrafting("none; --speculation auto adds the checkpoint's MTP head" * has_head)
    if speculation in INDEX_DRAFTERS or (speculation == "auto" and not has_head):
        demand = draft_demand(None, config, fp8=False)
        return PlannedDrafting("earlier text, on the host", demand, demand)
    path = directory if speculation == "auto" else _directory(speculation, drafter_dir)
    shape = read_drafter(path, config)
    if cards > 1 and isinstance(shape, MtpShape):
        network = config_of(shape.network, Share(0, cards))
        shape = msgspec.structs.replace(shape, network=network)
    source = "the checkpoint's MTP head" if path == directory else path.name
    narrow = form.head != "auto"
    demands = [
        draft_demand(shape, config, fp8=fp8, has_narrow_head=narrow) for fp8 in (False, True)
    ]
    return PlannedDrafting(source, *demands)


def _kept(directory: Path) -> KeptModules:
    raw = read_json(directory / CONFIG_NAME)
    text = raw.get("text_config")
    stated = stated_in(raw) or (stated_in(text) if isinstance(text, dict) else None)
    return read_kept(stated) if isinstance(stated, dict) else NOTHING_KEPT


class PlannedCard(NamedTuple):
    """A card's memory, and where that is from: empty if the command names it."""

    num_bytes: int
    source: str = ""


def this_card(host: Host) -> PlannedCard:
    """The first card of this host; one of 24GB where there is none with memory of its own."""
    for total_mib, *name in host.table(*_CARD):
        if total_mib.isdigit():
            return PlannedCard(int(total_mib) * 2**20, f" ({', '.join(name)})")
    return PlannedCard(
        card_bytes(_ASSUMED_CARD),
        f" ({_ASSUMED_CARD} assumed: no card was found here, --card names one)",
    )


def card_bytes(text: str) -> int:
    """24GB as the makers of cards count, or 22.4GiB. Raises `ConfigError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ConfigError(f"--card {text!r} is no size: write 24GB or 22.4GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def report(model: PlannedModel, card: PlannedCard, window: int | None) -> tuple[list[str], bool]:
    """The lines, and whether anything fits. Raises `ConfigError` for a window over the model's."""
    longest = model.config.max_position_embeddings
    if window is not None and window > longest:
        raise ConfigError(f"--window {window} is over the model's: at most {longest}")
    plans = list(_plans(model, card.num_bytes, window))
    lines = [*_facts(model, card, plans), "", *_table(plans)]
    return lines, any(found.whole_windows for _, _, found in plans)


def _plans(
    model: PlannedModel, card: int, window: int | None
) -> Iterator[tuple[str, MemoryChoice, Forecast]]:
    for name in profiles():
        for choice in _choices(model, name, window):
            yield name, choice, _forecast(model, card, choice)


def _choices(model: PlannedModel, profile: str, window: int | None) -> Iterator[MemoryChoice]:
    """The forms of a model under one profile, the widest first."""
    limits = profiles()[profile].token_budget, profiles()[profile].max_context, window
    for weights, fp8_kv in _forms(model.config.stored):
        yield MemoryChoice(weights, fp8_kv, *limits, model.vocabulary)


def _forecast(model: PlannedModel, card: int, choice: MemoryChoice) -> Forecast:
    return forecast(
        model.config, card, choice, _BLOCK_SIZE, kept=model.kept, drafts=model.drafting.larger,
    )  # fmt: skip


def _forms(stored: StoredFormat) -> tuple[tuple[str, bool], ...]:
    """How weights, and keys and values, may be kept: those of a checkpoint in 8 or 4 bits stay."""
    if stored.is_int4:
        return ("int4", False), ("int4", True)
    if stored is StoredFormat.MXFP4:
        return ("mxfp4", False), ("mxfp4", True)
    in_8_bits = ("fp8", False), ("fp8", True)
    if stored.is_fp8:
        return in_8_bits
    return ("bfloat16", False), *in_8_bits, ("int4", False), ("int4", True)


def _ranks(count: int) -> list[tuple[str, str]]:
    if count == 1:
        return []
    return [("ranks", f"{count} such cards (tensor_parallel = {count}); below is one card's share")]


def _facts(
    model: PlannedModel, card: PlannedCard, plans: list[tuple[str, MemoryChoice, Forecast]]
) -> list[str]:
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
    """What the two matrices with a row for each token take of the card, and what would be less."""
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


def _kept_windows(
    config: ModelDescription, plans: list[tuple[str, MemoryChoice, Forecast]]
) -> list[tuple[str, str]]:
    """What a sequence takes where layers keep only their window."""
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
    """No row for a model that nothing drafts for."""
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


def _table(plans: Sequence[tuple[str, MemoryChoice, Forecast]]) -> list[str]:
    """A line for each profile and dtype; its setting, and what fits."""
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
    name: str, model: PlannedModel, card: PlannedCard, arguments: argparse.Namespace
) -> Iterator[str]:
    """The best form in words, and the worker's table for it: the profile `balanced`, with as many
    bits as leave room for a whole window, or else the longest window.
    """
    plans = _plans(model, card.num_bytes, arguments.window)
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
        value = getattr(arguments, key)
        if value != default:
            is_table = key == "speculation" and value != "auto"
            shown = json.dumps(value)
            yield f"{key} = " + (f"{{ drafter = {shown} }}" if is_table else shown)
    yield f"context_length = {found.window}"
