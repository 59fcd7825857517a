"""What a worker's configuration means for one model: dtypes, window, facts.

Owns these rules, for a start as for its dry run. Must not know the memory of devices, nor files.
"""

from collections.abc import Callable
from typing import Final

import torch

from config import DUMMY_PREFIX, WorkerConfig
from kernels.choose import has_fp8, is_card
from kernels.fp8 import FP8
from kernels.int4 import GROUPS
from protocol.errors import ConfigError
from protocol.messages import ENFORCES_GRAMMARS, INVARIANT, RETAINS, SCORES_PROMPTS, EngineFacts
from protocol.probing import PROBE_PROMPT, PROBE_TOKENS
from workers.engine.load.quantize import StoredFormat
from workers.engine.memory.state_size import (
    StateDemand,
    StateMemory,
    choose_states,
)
from workers.engine.memory.window_size import (
    WindowDemand,
    WindowMemory,
    choose_windows,
    pays,
)
from workers.engine.models.description import ModelDescription
from workers.engine.models.network import Network
from workers.engine.models.state_slots import MOST_TAKEN_BACK
from workers.engine.models.vocabulary import VocabularyForm
from workers.engine.models.weights import LayerWeights, blocked, doubled, quantised, quartered
from workers.scheduler import CARD_SEQS, CPU_SEQS, most_sequences

_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_SHORTEST_WINDOW: Final = len(PROBE_PROMPT) + PROBE_TOKENS
"""An engine with less cannot answer its supervisor's first request."""

UNKNOWN_DIGEST: Final = bytes(16)
"""Stands for the digest of the model's files, which the supervisor fills in."""


def compute_dtype(
    config: WorkerConfig, shape: ModelDescription, device: torch.device
) -> torch.dtype:
    """auto: float32 on the CPU, where 16 bits are slower; the checkpoint's own on a card.

    Raises `ConfigError`.
    """
    name: str = config.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else shape.dtype
    asked = config.quantization, config.kv_dtype, config.prefill, config.head
    uses_fp8 = "fp8" in asked or shape.stored.is_fp8
    if uses_fp8 and is_card(device) and not has_fp8(device):
        raise ConfigError(
            f"{config.model} would need 8-bit floats, which no card before Ada (8.9) has: take the "
            'model in 16 bits, without quantization, prefill, head and kv_dtype = "fp8"'
        )
    if config.invariant and shape.delta_rules:
        raise ConfigError(
            f"{config.model} has recurrent layers, whose rounding depends on how a prompt is cut: "
            "remove `invariant`"
        )
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not supported: set dtype to one of {list(_DTYPES)}")
    return _DTYPES[name]


def kv_dtype(config: WorkerConfig, dtype: torch.dtype) -> torch.dtype:
    """The dtype of keys and values of a network that computes in `dtype`."""
    return FP8 if config.kv_dtype == "fp8" else dtype


def layer_change(
    config: WorkerConfig, shape: ModelDescription, dtype: torch.dtype, device: torch.device
) -> Callable[[LayerWeights], LayerWeights] | None:
    """The function that changes a layer's weights as soon as they are read or drawn, None if they
    stay as they are. Drawn weights are also changed to the format of the checkpoint for which they
    stand. Raises `ConfigError`.
    """
    if config.quantization != "auto" and (
        shape.stored.is_int4 or shape.stored is StoredFormat.MXFP4
    ):
        raise ConfigError(
            f'{config.model} is in 4 bits already: remove quantization = "{config.quantization}"'
        )
    if config.prefill == "fp8":
        if shape.stored is not StoredFormat.DENSE:
            raise ConfigError(
                f'{config.model} is quantised already: remove prefill = "fp8", which is for '
                "checkpoints of 16 bits"
            )
        if device.type == "cuda" and dtype != torch.bfloat16:
            raise ConfigError(
                f'prefill = "fp8" multiplies bfloat16 rows, not {dtype}: remove it or `dtype`'
            )
        return doubled
    is_stored = device.type == "meta" or config.model.startswith(DUMMY_PREFIX)
    is_stored = is_stored and shape.stored not in {StoredFormat.DENSE, StoredFormat.MXFP4}
    if config.quantization == "int4" or (is_stored and shape.stored.is_int4):
        return quartered
    if is_stored and shape.stored.is_by_block:
        return blocked
    return quantised if config.quantization == "fp8" or is_stored else None


def vocabulary_form(config: WorkerConfig, shape: ModelDescription) -> VocabularyForm:
    """How embedding and head are kept. Raises `ConfigError`."""
    if shape.embeds and (config.head, config.embedding) != ("auto", "auto"):
        raise ConfigError(f"{config.model} embeds and has no head: remove `head` and `embedding`")
    if config.embedding == "host" and config.head == "auto" and shape.tied:
        raise ConfigError(
            f'{config.model} has one matrix for embedding and head, so embedding = "host" needs '
            'head = "fp8" or "int4", which makes a head of its own'
        )
    if config.head == "int4" and shape.hidden_size % GROUPS[-1]:
        raise ConfigError(
            f'head = "int4" needs rows of a multiple of {GROUPS[-1]} numbers, and those of '
            f'{config.model} have {shape.hidden_size}: take head = "fp8"'
        )
    return VocabularyForm(config.head, config.embedding == "host")


def window(config: WorkerConfig, shape: ModelDescription) -> int:
    """The longest sequence, memory aside. Raises `ConfigError`."""
    largest = shape.max_position_embeddings
    if config.context_length is not None and config.context_length > largest:
        raise ConfigError(
            f"context_length = {config.context_length} is over the window of {config.model}: "
            f"at most {largest}"
        )
    longest = config.context_length or min(largest, config.max_context or largest)
    if longest < _SHORTEST_WINDOW:
        raise ConfigError(
            f"a window of {longest} tokens holds no request: set context_length to at least "
            f"{_SHORTEST_WINDOW}"
        )
    return longest


def engine_facts(
    config: WorkerConfig,
    model: Network,
    context: int,
    num_blocks: int,
    max_seqs: int | None = None,
    snapshots: int = 0,
) -> EngineFacts:
    """The facts of an engine with `num_blocks` blocks of keys and values and, if its model has
    states or windows, `snapshots` of them for prefixes. `max_seqs` None follows from the blocks.
    """
    kv_tokens = num_blocks * config.block_size
    return EngineFacts(
        kind="native",
        device=str(model.device),
        dtype=_dtype_name(config, model),
        context_length=min(context, kv_tokens),
        block_size=config.block_size,
        kv_tokens=kv_tokens,
        max_seqs=max_seqs or sequences(config, kv_tokens, model.device),
        token_budget=config.token_budget,
        files_digest=UNKNOWN_DIGEST,
        capabilities=(
            ENFORCES_GRAMMARS,
            SCORES_PROMPTS,
            RETAINS,
            *([INVARIANT] if config.invariant else ()),
        ),
        embedding_size=model.config.hidden_size if model.config.embeds else 0,
        snapshots=snapshots if model.config.delta_rules or model.config.kept_window else None,
    )


def sequences(config: WorkerConfig, kv_tokens: int, device: torch.device) -> int:
    """How many sequences an engine with `kv_tokens` of keys and values takes at once."""
    return most_sequences(config.max_seqs, kv_tokens, _most_seqs(device))


def states(
    config: WorkerConfig,
    shape: ModelDescription,
    dtype: torch.dtype,
    device: torch.device,
    room: int,
) -> StateMemory | None:
    """The states that fit into `room` bytes beside keys and values; None for a model without."""
    if not shape.delta_rules:
        return None
    each = shape.state_bytes(dtype.itemsize)
    wanted = config.max_seqs, config.snapshots, _most_seqs(device)
    is_drafting = config.drafting is not None
    ring = shape.ring_bytes(dtype.itemsize, MOST_TAKEN_BACK) if is_drafting else 0
    demand = StateDemand(each, *wanted, ring)
    return choose_states(room, demand, is_card=is_card(device))


def with_windows(
    config: WorkerConfig, shape: ModelDescription, *, is_drafting: bool
) -> ModelDescription:
    """The network, whose layers with a window keep nothing else where that pays: where other
    layers keep all tokens, no copies go to the host, and no drafting network reads what a step has
    prepared (`is_drafting`).
    """
    if is_drafting or config.host_cache_bytes or shape.delta_rules:
        return shape
    kept = shape.keeping_windows()
    if not kept.token_numbers or not kept.kept_window:
        return shape
    context = window(config, shape)
    token_bytes = kept.window_numbers * (1 if config.kv_dtype == "fp8" else 2)
    return kept if pays(token_bytes, kept.kept_window, context, config.block_size) else shape


def window_memory(
    config: WorkerConfig, shape: ModelDescription, item_bytes: int, room: int, device: torch.device
) -> WindowMemory | None:
    """The blocks of layers that keep only their window, of `room` bytes that are left for keys and
    values, whose numbers have `item_bytes`; None for a network without such.
    """
    if not shape.kept_window:
        return None
    demand = WindowDemand(
        token_bytes=shape.window_numbers * item_bytes,
        other_bytes=shape.token_numbers * item_bytes,
        window=shape.kept_window,
        block_size=config.block_size,
        token_budget=config.token_budget,
        wanted_tokens=config.kv_tokens or config.context_length or 0,
        most=2 * (config.max_seqs or _most_seqs(device)),
    )
    return choose_windows(room, demand)


def probe_facts(
    config: WorkerConfig,
    model: Network,
    room_tokens: int | None = None,
    max_seqs: int | None = None,
) -> EngineFacts:
    """The facts before the number of blocks is known: blocks for one window, or for the part of the
    window that `kv_tokens` allows. `max_seqs` None: as many sequences as `room_tokens` tokens,
    which all memory could hold, are good for (None: no bound).
    """
    context = window(config, model.config)
    longest = min(context, config.kv_tokens or context)
    most_tokens = config.kv_tokens or (2**62 if room_tokens is None else room_tokens)
    max_seqs = max_seqs or sequences(config, most_tokens, model.device)
    return engine_facts(config, model, context, -(-longest // config.block_size), max_seqs)


def _most_seqs(device: torch.device) -> int:
    return CPU_SEQS if device.type == "cpu" else CARD_SEQS


def _dtype_name(config: WorkerConfig, model: Network) -> str:
    """The name of the number formats, for example `bfloat16`, `bfloat16+fp8` (the layers' weights),
    `bfloat16+fp8prefill+fp8kv`, `bfloat16+int4+fp8head`.
    """
    name = str(model.weights.embedding.dtype).removeprefix("torch.")
    weights = "+fp8" if model.weights.is_fp8 else "+int4" if model.weights.is_int4 else ""
    weights += "+fp8prefill" if config.prefill == "fp8" else ""
    weights += "" if config.head == "auto" else f"+{config.head}head"
    return name + weights + ("+fp8kv" if config.kv_dtype == "fp8" else "")
