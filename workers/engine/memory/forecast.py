"""What a model will take on a card, before anything is loaded: from its description alone.

Owns the sums, over plain numbers, and what of them is an estimate. Weights, keys and values are
exact; the largest step and the graphs are measured at a start (`peak_probe.py`), and here bounded
by what their tensors take. Must not know files, devices, drafters nor how it is shown.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kernels.int4 import GROUPS
from kernels.mxfp4 import GROUP
from workers.engine.load.kept_modules import NOTHING_KEPT, KeptModules
from workers.engine.load.quantize import StoredFormat
from workers.engine.memory.kv_size import CARD_SHARE
from workers.engine.memory.state_size import StateDemand, StateMemory, choose_states
from workers.engine.memory.window_size import (
    WindowDemand,
    WindowMemory,
    choose_windows,
    pays,
)
from workers.engine.models.description import (
    DeltaRule,
    Dense,
    Experts,
    Latent,
    Layer,
    ModelDescription,
)
from workers.engine.models.tensor_names import last_part
from workers.engine.models.vocabulary import AS_STORED, VocabularyForm
from workers.scheduler import CARD_SEQS, most_kept, most_sequences

CONTEXT_BYTES: Final = 600 * 2**20
"""The memory of a CUDA context and its libraries beside torch's allocator; 520 MiB on an H200."""

_GRAPHS_BYTES: Final = 256 * 2**20
"""Some 30 graphs take a few MiB each of the driver's memory, the library's workspace 32 MiB."""

_HALF: Final = 2
_SCALE_BYTES: Final = 4
_SAMPLER_COPIES: Final = 4
"""Logits of one row in float32 with what filters sort: probabilities, order and cumulated sums."""

_GROUP_BYTES: Final = 3
"""A scale and a zero point of a group in 4 bits."""

_RESIDUALS: Final = 3
"""Hidden states of a row at once: those before a layer, behind its mixer, and a normed copy."""


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """What a worker's configuration decides; `token_budget` and `max_context` are a profile's.
    `weights` is "bfloat16", "fp8" or "int4". `vocabulary`: how embedding and head are kept.
    """

    weights: str
    fp8_kv: bool
    token_budget: int
    max_context: int
    context_length: int | None = None
    vocabulary: VocabularyForm = AS_STORED


@dataclass(frozen=True, slots=True)
class DraftDemand:
    """What drafts take: a drafter's weights, its keys and values of a token, what a row of a step
    takes for it, and the rows of a sequence's recurrent layers that may be taken back.
    """

    weights_bytes: int = 0
    token_bytes: int = 0
    row_bytes: int = 0
    ring_bytes: int = 0


NO_DRAFTS: Final = DraftDemand()


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes, and what fits into the rest of the card: tokens of keys and values, the window, and
    how many sequences of a whole window at once. `missing_bytes`: what one window lacks.
    `state_bytes` are those of one recurrent state, `snapshots` the number of prefixes with one.
    Where layers keep only their window, `window_bytes` are those of one sequence, which are not
    among its `token_bytes`.
    """

    weights_bytes: int
    token_bytes: int
    state_bytes: int
    step_bytes: int
    graphs_bytes: int
    kv_tokens: int
    window: int
    whole_windows: int
    max_seqs: int
    snapshots: int
    missing_bytes: int
    window_bytes: int = 0


def forecast(
    config: ModelDescription,
    card_bytes: int,
    choice: MemoryChoice,
    block_size: int,
    *,
    kept: KeptModules = NOTHING_KEPT,
    drafts: DraftDemand = NO_DRAFTS,
    keeps_all: bool = False,
) -> Forecast:
    """What an engine on a card of `card_bytes` would find; `kept` are modules in 16 bits. With
    `keeps_all` all layers keep all tokens, as beside a host cache.
    """
    if not keeps_all and not drafts.weights_bytes:
        config = windows_kept(config, choice, block_size)
    weights = weights_bytes(config, choice.weights, kept, choice.vocabulary)
    token = kv_token_bytes(config, choice)
    step, graphs = step_bytes(config, choice.token_budget), graphs_bytes(config)
    room = card_bytes - CONTEXT_BYTES - weights - drafts.weights_bytes
    state, states = config.state_bytes(_HALF), StateMemory(0, 0, 0)
    if state:
        demand = StateDemand(state, None, None, CARD_SEQS, ring_bytes=drafts.ring_bytes)
        states = choose_states(max(0, room), demand, is_card=True)
    room -= step + states.num_bytes + choice.token_budget * drafts.row_bytes
    block = (token + drafts.token_bytes) * block_size
    # A start keeps a share of the rest for graphs and the driver; they may need more.
    usable = min(int(CARD_SHARE * room), room - graphs)
    windows, num_snapshots, most_whole = _windows(config, choice, block_size, usable)
    usable -= 0 if windows is None else windows.num_bytes
    num_blocks = max(0, usable // block)
    kv_tokens = num_blocks * block_size
    wanted = choice.context_length or min(config.max_position_embeddings, choice.max_context)
    window = min(wanted, kv_tokens)
    missing = -(-wanted // block_size) * block - usable if wanted > kv_tokens else 0
    return Forecast(
        weights_bytes=weights,
        token_bytes=token,
        state_bytes=state,
        step_bytes=step,
        graphs_bytes=graphs,
        kv_tokens=kv_tokens,
        window=window,
        whole_windows=min(most_whole, kv_tokens // wanted),
        max_seqs=states.num_seqs or most_sequences(None, kv_tokens, CARD_SEQS),
        snapshots=states.num_snapshots + num_snapshots,
        missing_bytes=max(0, missing),
        window_bytes=window_bytes(config, choice, block_size),
    )


def windows_kept(
    config: ModelDescription, choice: MemoryChoice, block_size: int
) -> ModelDescription:
    """The network, whose layers with a window keep nothing else if that pays."""
    kept = config.keeping_windows()
    if not kept.kept_window or not kept.token_numbers or kept.delta_rules:
        return config
    context = choice.context_length or min(config.max_position_embeddings, choice.max_context)
    token_bytes = kept.window_numbers * _kv_item(choice)
    return kept if pays(token_bytes, kept.kept_window, context, block_size) else config


def window_bytes(config: ModelDescription, choice: MemoryChoice, block_size: int) -> int:
    """What a sequence longer than the window takes in layers that keep nothing else."""
    if not config.kept_window:
        return 0
    kept = most_kept(config.kept_window, block_size) * block_size
    return kept * config.window_numbers * _kv_item(choice)


def _windows(
    config: ModelDescription, choice: MemoryChoice, block_size: int, room: int
) -> tuple[WindowMemory | None, int, int]:
    """The blocks of windows, how many prefixes have snapshots of them, and of how many sequences
    there is room for.
    """
    if not config.kept_window:
        return None, 0, sys.maxsize
    item = _kv_item(choice)
    demand = WindowDemand(
        token_bytes=config.window_numbers * item,
        other_bytes=config.token_numbers * item,
        window=config.kept_window,
        block_size=block_size,
        token_budget=choice.token_budget,
        wanted_tokens=choice.context_length or 0,
        most=2 * CARD_SEQS,
    )
    found = choose_windows(max(0, room), demand)
    return found, found.num_snapshots, found.num_windows


def weights_bytes(
    config: ModelDescription,
    form: str,
    kept: KeptModules = NOTHING_KEPT,
    vocabulary: VocabularyForm = AS_STORED,
) -> int:
    """All weights in 16 bits; or the layers' products in 8 bits with a scale for each row, or in 4
    with a scale of 16 bits and a zero point of 8 for each group; of a checkpoint in "mxfp4" experts
    only. What gates a recurrent layer stays in 16, as does a product of which `kept` has a part.
    """
    outer = sum(vocabulary_bytes(config, vocabulary)) + _HALF * config.side_numbers
    if form == "bfloat16":
        return _HALF * config.layer_weights + outer
    return outer + sum(
        layer_bytes(config, layer, form, kept, at) for at, layer in enumerate(config.layers)
    )


def vocabulary_bytes(config: ModelDescription, vocabulary: VocabularyForm) -> tuple[int, int]:
    """What the embedding and the head take of the card."""
    rows, columns = config.vocab_size, config.hidden_size
    embedding = 0 if vocabulary.on_host else rows * _wide_row(columns)
    if config.tied and vocabulary.head == "auto":
        return embedding, 0
    held = rows // config.head_ranks
    return embedding, held * _ROW_BYTES.get(vocabulary.head, _wide_row)(columns)


def layer_bytes(
    config: ModelDescription, layer: Layer, form: str, kept: KeptModules, at: int
) -> int:
    """The products of layer number `at`."""
    row_bytes = _ROW_BYTES.get(form, _wide_row)
    return sum(
        rows * (_wide_row if is_wide else row_bytes)(columns)
        for (rows, columns), is_wide in zip(
            config.matrices(layer), _are_wide(config, layer, kept, at), strict=True
        )
    )


def _are_wide(config: ModelDescription, layer: Layer, kept: KeptModules, at: int) -> Iterator[bool]:
    """Which of a layer's merged products are in 16 bits, in the order of `matrices`."""
    yield from _mixed_are_wide(config, layer, kept, at)
    prefixes, names = config.names.prefixes, config.names
    if layer.side_width:
        for name in (names.side_gate, names.side_out):
            spellings = [f"{each}layers.{at}.{name}" for each in prefixes]
            yield config.stored is StoredFormat.MXFP4 or kept.has(spellings)


def _mixed_are_wide(
    config: ModelDescription, layer: Layer, kept: KeptModules, at: int
) -> Iterator[bool]:
    """Whether the matrices of the mixer, and of the feed-forward network, stay wide."""

    def has_kept(modules: tuple[str, ...]) -> bool:
        names = [[f"{each}layers.{at}.{name}" for each in prefixes] for name in modules]
        return any(kept.has(spellings) for spellings in names)

    if config.stored is StoredFormat.MXFP4:
        stacks = 2 if isinstance(layer.mlp, Experts) else 0
        yield from [True] * len(config.mixer_matrices(layer))
        for place in range(len(config.mlp_matrices(layer))):
            yield place >= stacks
        return
    names, prefixes, mixer = config.names, config.names.prefixes, layer.mixer
    if isinstance(mixer, DeltaRule):
        inputs = tuple([f"{names.delta}.{name}" for name in names.delta_in])
        out, is_moved = f"{names.delta}.out_proj", config.stored.is_by_block and len(inputs) == 1
    else:
        inputs, out = names.qkv, names.out
        if isinstance(mixer, Latent):
            maker = names.query_down if mixer.query_rank else names.qkv[0]
            inputs = maker, names.latent_down
        # Scales by block do not move with the rows, so the loader widens these.
        moves = isinstance(mixer, Latent) and mixer.interleaved
        is_moved = config.stored.is_by_block and (mixer.is_partial or mixer.out_gate or moves)
    reads_wide = is_moved or has_kept(inputs)
    # Attention's output gates are rows of the queries.
    yield from (reads_wide, has_kept((out,)), reads_wide or isinstance(mixer, DeltaRule))
    if isinstance(mixer, Latent):
        yield from (reads_wide or has_kept((names.query_up,)), True)
    if isinstance(layer.mlp, Dense):
        yield from (has_kept(names.gate_up), has_kept((names.down,)))
        return
    for start in (f"{names.experts}.0", names.shared):
        yield has_kept(tuple([f"{start}.{last_part(name)}" for name in names.gate_up]))
        yield has_kept((f"{start}.{last_part(names.down)}",))
    yield True


def _wide_row(columns: int) -> int:
    return _HALF * columns


def _fp8_row(columns: int) -> int:
    return columns + _SCALE_BYTES


def _int4_row(columns: int) -> int:
    group = next((size for size in GROUPS if columns % size == 0), 0)
    return columns // 2 + columns // group * _GROUP_BYTES if group else _HALF * columns


def _mxfp4_row(columns: int) -> int:
    return columns // 2 + columns // GROUP


_ROW_BYTES: Final = {"fp8": _fp8_row, "int4": _int4_row, "mxfp4": _mxfp4_row}


def kv_token_bytes(config: ModelDescription, choice: MemoryChoice) -> int:
    """Keys and values of one token in all layers that keep all tokens."""
    return config.token_numbers * _kv_item(choice)


def _kv_item(choice: MemoryChoice) -> int:
    return 1 if choice.fp8_kv else _HALF


def step_bytes(config: ModelDescription, token_budget: int) -> int:
    """The tensors of the widest layer for a full step, and a full batch of draws with filters."""
    widest = max(config.row_numbers(layer) for layer in config.layers)
    row = _HALF * (widest + _RESIDUALS * config.hidden_size + 2 * config.side_width)
    draws = min(CARD_SEQS, token_budget) * config.vocab_size * 4 * _SAMPLER_COPIES
    return max(token_budget * row, draws)


def graphs_bytes(config: ModelDescription) -> int:
    """Graphs, and the result that they share: logits of a full batch."""
    return _GRAPHS_BYTES + CARD_SEQS * config.vocab_size * _HALF
