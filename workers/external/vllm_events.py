"""vLLM's KV events, from MessagePack to values.

Owns the format as vLLM and SGLang publish it: a batch is (ts, events, data_parallel_rank), an event
an array that begins with its name (vLLM 0.26) or a map with its name under `type` (since then).
Strict in what it knows, because a half-understood event would promise blocks that are not there;
fields and kinds that newer versions add are skipped and counted. Must not know what the events do.

    https://github.com/vllm-project/vllm/blob/main/vllm/distributed/kv_events.py
"""

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.errors import WireError
from protocol.reading import FAULTS

MAX_PAYLOAD_BYTES: Final = 64 * 2**20

BlockHash = int | bytes
"""The engine's name of a block and of all blocks before it: 64 bits, or the whole sha256."""

_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_BlockSize = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
_Keys = tuple[object, ...]


class _Event(msgspec.Struct, frozen=True, gc=False):
    """A frozen event. Its fields are in the order of the array."""


class BlockStored(_Event, frozen=True, gc=False):
    """Consecutive blocks entered a cache; `token_ids` are the tokens of all of them.

    `extra_keys` has one entry per block, with what identifies the block besides its tokens:
    adapter, images, salt. `group_idx` is the group of layers in a hybrid model.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: list[_Token]
    block_size: _BlockSize
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: tuple[_Keys | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(_Event, frozen=True, gc=False):
    """Blocks left a cache."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(_Event, frozen=True, gc=False):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared

_KINDS: Final[dict[str, type[Event]]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The changes of one step of the engine, oldest first, and the counts of unknown fields and
    kinds.
    """

    events: tuple[Event, ...]
    rank: int | None
    unknown_fields: int
    unknown_kinds: int


def decode_batch(payload: bytes) -> EventBatch:
    """Decode a batch. Raises `WireError` for anything else, with what is wrong and where."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise WireError(f"KV events: {len(payload)} bytes; a batch has at most {MAX_PAYLOAD_BYTES}")
    try:
        head, surplus = _open(msgspec.msgpack.decode(payload))
        known = [_event(index, raw) for index, raw in enumerate(head.events)]
    except FAULTS as error:
        raise WireError(f"KV events: {error}") from error
    return EventBatch(
        events=tuple(event for event, _ in known if event is not None),
        rank=head.data_parallel_rank,
        unknown_fields=surplus + sum(num_unknown for _, num_unknown in known),
        unknown_kinds=sum(event is None for event, _ in known),
    )


class _Head(msgspec.Struct, frozen=True):
    ts: float
    events: list[object]
    data_parallel_rank: int | None = None


def _open(raw: object) -> tuple[_Head, int]:
    fields, surplus = _named(raw, _Head)
    return msgspec.convert(fields, _Head), surplus


def _event(index: int, raw: object) -> tuple[Event | None, int]:
    """The event, None for an unknown kind, and the number of unknown fields."""
    name, body = _tagged(index, raw)
    kind = _KINDS.get(name)
    if kind is None:
        return None, 0
    try:
        fields, surplus = _named(body, kind)
        return msgspec.convert(fields, kind), surplus
    except msgspec.MsgspecError as error:
        raise WireError(f"KV events: event {index} ({name}): {error}") from error


def _tagged(index: int, raw: object) -> tuple[str, object]:
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        return raw[0], raw[1:]
    if isinstance(raw, dict) and isinstance(name := raw.get("type"), str):
        return name, {key: value for key, value in raw.items() if key != "type"}
    raise WireError(f"KV events: event {index} is neither an array nor a map with a name")


def _named(raw: object, kind: type[msgspec.Struct]) -> tuple[dict[object, object], int]:
    """The fields by name, and the number of fields beyond those of `kind`."""
    names = kind.__struct_fields__
    if isinstance(raw, list):
        return dict(zip(names, raw, strict=False)), max(0, len(raw) - len(names))
    if isinstance(raw, dict):
        return raw, len(raw.keys() - set(names))
    raise WireError(f"KV events: {type(raw).__name__} where an array or a map belongs")
