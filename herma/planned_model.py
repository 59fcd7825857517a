"""A model on a card before it is loaded: its drafter, its forms, and the memory of each form.

Owns how a model is read for a plan, and which of its forms are looked at. Reads config.json alone,
the model's and its drafter's, which it fetches from the hub if need be: no weights. Of this host's
card it reads the memory, where no other card is named. Must not know the words of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from config import DUMMY_PREFIX, INDEX_DRAFTERS, WorkerConfig, builtin_config, profiles
from herma.doctor import Host
from protocol.errors import ConfigError
from workers.engine.drafting.demand import draft_demand
from workers.engine.drafting.description import MtpShape, names_head, read_drafter
from workers.engine.load.checkpoint import INDEX_NAME
from workers.engine.load.kept_modules import NOTHING_KEPT, KeptModules, read_kept
from workers.engine.load.quantize import StoredFormat, stated_in
from workers.engine.memory.forecast import (
    NO_DRAFTS,
    DraftDemand,
    Forecast,
    MemoryChoice,
    forecast,
)
from workers.engine.models.description import ModelDescription
from workers.engine.models.model_config import read_model_config
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm
from workers.engine.parallel.shares import Share, config_of
from workers.engine.settings import vocabulary_form
from workers.model_dir import (
    CONFIG_NAME,
    check_form,
    drafter_dir,
    dummy_names,
    local_dir,
    read_json,
)

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(gb|gib|)", re.IGNORECASE)
_UNITS: Final = {"gb": 10**9, "gib": 2**30, "": 10**9}
_BLOCK_SIZE: Final = builtin_config().workers[0].block_size

_CARD: Final = ("nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits")
_ASSUMED_CARD: Final = "24GB"

LARGEST_CARD: Final = 2**42
_FINE: Final = 2**20
"""The search for a model's need ends at a difference of one MiB, and looks at cards of at most
4 TiB.
"""

PlannedForm = tuple[str, MemoryChoice, Forecast]
"""A profile, a form of the model, and what it takes."""


class PlanOptions(NamedTuple):
    """The worker's keys as the command names them; `cards` share one model."""

    window: int | None
    head: Literal["auto", "fp8", "int4"]
    embedding: Literal["auto", "host"]
    speculation: str
    cards: int


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


class PlannedDrafting(NamedTuple):
    """What drafts, in words, and what it takes on cards with 8-bit floats and on others."""

    source: str
    wide: DraftDemand = NO_DRAFTS
    fp8: DraftDemand = NO_DRAFTS

    @property
    def larger(self) -> DraftDemand:
        """The larger of the two needs, for a card of which only the size is known."""
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


def read_planned(name: str, options: PlanOptions) -> PlannedModel:
    """The model as the options say. Raises `ConfigError`."""
    directory = _directory(name, local_dir)
    is_here = local_dir(name) is not None and not name.startswith(DUMMY_PREFIX)
    if is_here and not (directory / INDEX_NAME).exists():
        check_form(directory)  # as a start does; without any weights the model is still to come
    config = read_model_config(directory)
    asked = WorkerConfig(
        "plan", name, "plan", (), 1, head=options.head, embedding=options.embedding
    )
    form = vocabulary_form(asked, config)
    if options.cards > 1:
        if options.embedding != "auto":
            raise ConfigError("--cards has no --embedding: leave it out")
        config = config_of(config, Share(0, options.cards))
    drafter = _drafter_of(name, options.speculation)
    chosen = _drafts(drafter, directory, config, form, options.cards)
    return PlannedModel(config, _kept(directory), chosen, form, options.cards)


def _directory(name: str, find: Callable[[str], Path | None]) -> Path:
    """The directory of a model or a drafter; one of the hub has its configuration alone."""
    try:
        directory = find(name)
    except ConfigError as error:
        if name not in dummy_names():
            raise
        raise ConfigError(f"{error}; the shape of that name is {DUMMY_PREFIX}{name}") from error
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
    """The drafting that a worker with this `speculation` would choose. With several `cards` it is
    one card's share, as `config` is. Raises `ConfigError`.
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


def plans_of(model: PlannedModel, card: int, window: int | None) -> Iterator[PlannedForm]:
    for name in profiles():
        for choice in choices_of(model, name, window):
            yield name, choice, forecast_of(model, card, choice)


def choices_of(model: PlannedModel, profile: str, window: int | None) -> Iterator[MemoryChoice]:
    """The forms of a model under one profile, the widest first."""
    limits = profiles()[profile].token_budget, profiles()[profile].max_context, window
    for weights, fp8_kv in _forms(model.config.stored):
        yield MemoryChoice(weights, fp8_kv, *limits, model.vocabulary)


def forecast_of(model: PlannedModel, card: int, choice: MemoryChoice) -> Forecast:
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


def least_card(model: PlannedModel, choice: MemoryChoice) -> int:
    """The least card memory with which an engine has a whole window. It is found by trying sizes
    with the plan of that model alone, so both plans say the same.
    """
    low, high = 0, LARGEST_CARD
    while high - low > _FINE:
        middle = (low + high) // 2
        if forecast_of(model, middle, choice).whole_windows:
            high = middle
        else:
            low = middle
    return high
