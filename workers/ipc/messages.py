"""The control messages between a supervisor and its engine, on link 0.

Owns the messages and their encoding. They use the wire's MessagePack form, with tags from 64 up, so
that `peek_tag` distinguishes them from the health probe's messages. Must not know sockets.
"""

from typing import Annotated, Final

import msgspec

from protocol.messages import EngineFacts
from protocol.reading import decoded

FIRST_CONTROL_TAG: Final = 64


class _Control(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frozen message, encoded as an array whose first element is the tag."""


class EngineStart(_Control, frozen=True, tag=64):
    """The first frame: the worker's configuration as JSON, and the epoch of this start."""

    config_json: bytes
    epoch: int


class DropLink(_Control, frozen=True, tag=65):
    """The gateway of that link is gone: abort its sequences without messages."""

    link: int


class Shutdown(_Control, frozen=True, tag=66):
    """End the process now."""


class DrainEngine(_Control, frozen=True, tag=67):
    """No more work follows; send `Drained` when no sequence is left."""


class ClearCache(_Control, frozen=True, tag=68):
    """Forget cached prefixes that no sequence uses, on all tiers, and answer `Cleared`."""


CHECKPOINT: Final = "the driver's checkpoint"
"""The way to sleep that moves all that a process has on the card into its own memory."""


NATIVE_SLEEP: Final = "native sleep"
"""The way of Herma's own engine: its memory leaves the card, its addresses and graphs stay."""


class SleepEngine(_Control, frozen=True, tag=69):
    """Move all memory off the device by this `way`, "" for the first that `EngineReady` named, and
    answer `Slept`. No sequence is left, and none comes.
    """

    way: str = ""


class WakeEngine(_Control, frozen=True, tag=70):
    """Take the memory back, prove that the model still answers, and answer `Woken`. Later reports
    belong to this epoch.
    """

    epoch: int


ToEngine = EngineStart | DropLink | Shutdown | DrainEngine | ClearCache | SleepEngine | WakeEngine


_Speed = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class StartSpeed(msgspec.Struct, frozen=True):
    """Tokens per second of one lone request: of its answer, and of its long prompt; 0 is unknown.
    `prompt_tokens` is the length of that prompt.
    """

    decode_tokens_per_s: _Speed = 0.0
    prefill_tokens_per_s: _Speed = 0.0
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


class EngineReady(_Control, frozen=True, tag=80):
    """The model is loaded. Its text files are in `model_dir`, "" for a text-level engine. `speed`
    is measured at this start; `version` is an external engine's. `trouble` is a line about a fault
    that the start has found and tolerates. `sleep_way` names the API by which the process can sleep
    without an end, if there is one; `sleep_refusal` is why this process cannot sleep in that way.
    `more_ways` are tried after it, each with the reason why it cannot be used, "" if it can.
    """

    facts: EngineFacts
    model_dir: str
    speed: StartSpeed = StartSpeed()
    version: str = ""
    trouble: str = ""
    sleep_way: str = ""
    sleep_refusal: str = ""
    more_ways: tuple[tuple[str, str], ...] = ()


class Heartbeat(_Control, frozen=True, tag=81):
    """Sent every 200 ms by a separate thread. `step` counts finished steps. `phase` names a
    declared long operation (a compile) in the current step, empty otherwise. `expected_step_s`
    estimates the current step from earlier, smaller ones. `drafting` is a line for people about the
    gain of drafts, `cache` one about the host tier.
    """

    step: int
    busy: bool
    phase: str = ""
    longest_step_s: float = 0.0
    expected_step_s: float = 0.0
    drafting: str = ""
    cache: str = ""


class StartProgress(_Control, frozen=True, tag=82):
    """The progress of the start, or the beginning of a long operation."""

    phase: str
    fraction: float
    detail: str = ""


class EngineFailed(_Control, frozen=True, tag=83):
    """The engine ends because of `cause`, one line for people; `detail` is for the log.
    `is_config`: the operator's configuration or files are wrong, and the line names the remedy.
    """

    cause: str
    detail: str = ""
    is_config: bool = False


class Drained(_Control, frozen=True, tag=84):
    """No sequence is left after `DrainEngine`."""


class Slept(_Control, frozen=True, tag=85):
    """The answer to `SleepEngine`: `why` it does not sleep, "" if it says that it does. A native
    engine says how much of the host's memory it holds for that, and what it keeps there (`note`).
    """

    why: str = ""
    host_bytes: int | None = None
    note: str = ""


class Woken(_Control, frozen=True, tag=86):
    """The answer to `WakeEngine`: `why` it does not serve, "" if it does. `is_asleep`: others have
    the memory; it sleeps on, and may be asked again.
    """

    why: str = ""
    is_asleep: bool = False


class Cleared(_Control, frozen=True, tag=87):
    """The answer to `count` messages `ClearCache`: no later engine finds what they meant."""

    count: int


FromEngine = (
    EngineReady | Heartbeat | StartProgress | EngineFailed | Drained | Slept | Woken | Cleared
)

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode_control(message: ToEngine | FromEngine) -> bytes:
    """The payload of a control message."""
    return _encoder.encode(message)


def decode_to_engine(payload: bytes) -> ToEngine:
    """The message of a payload from the supervisor. Raises `WireError` for anything else."""
    return decoded(_to_engine, payload, "a control message to an engine")


def decode_from_engine(payload: bytes) -> FromEngine:
    """The message of a payload from the engine. Raises `WireError` for anything else."""
    return decoded(_from_engine, payload, "a control message from an engine")
