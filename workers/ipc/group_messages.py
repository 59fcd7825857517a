"""The messages between the supervisors of one group: each repeats its own state.

Owns the two states, the facts of a host, and their encoding as JSON. States are repeated, so a lost
one costs half a second and nothing else. Must not know sockets or processes.
"""

from typing import Annotated, Final, TypeVar

import msgspec

from protocol.errors import WireError
from protocol.reading import decoded

S = TypeVar("S")
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Names = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=64)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=1023)]
MAX_STATE_BYTES: Final = 2**18


class LinkFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network or InfiniBand interface; `mtu` 0 is unknown."""

    is_up: bool
    mtu: int = 0


class HostFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a rank's host before a start. `segments` are unused leftovers in /dev/shm;
    `taken_ports` are taken ports that the engine needs.
    """

    build: _Text = ""
    driver: _Text = ""
    links: Annotated[dict[str, LinkFacts], msgspec.Meta(max_length=64)] = {}
    taken_ports: tuple[int, ...] = ()
    segments: _Names = ()


class RankState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a rank's supervisor. `session` is new with each start of that process. `run` is
    the last run that it has begun, which is over once it `is_clean` again; then `cause` says why,
    and `facts` are fresh.
    """

    group: _Text
    rank: _Rank
    name: _Text
    session: _Text
    run: _Text = ""
    is_clean: bool = False
    cause: _Text = ""
    phase: _Text = ""
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    detail: _Text = ""
    facts: HostFacts = HostFacts()


class HeadState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of the head's supervisor: the current `run` and the sessions of its ranks. `run` is
    "" if there is none, and then `reason` says why. `serves`: the head's engine has answered.
    """

    run: _Text = ""
    sessions: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1024)] = ()
    reason: _Text = ""
    serves: bool = False
    refusal: _Text = ""


_encoder = msgspec.json.Encoder()
_rank_states = msgspec.json.Decoder(RankState)
_head_states = msgspec.json.Decoder(HeadState)


def encode_state(state: RankState | HeadState) -> bytes:
    """The state as one frame."""
    return _encoder.encode(state)


def decode_rank_state(frame: bytes) -> RankState:
    """Decode a rank's state. Raises `WireError` for anything else."""
    return _decoded(_rank_states, frame)


def decode_head_state(frame: bytes) -> HeadState:
    """Decode the head's state. Raises `WireError` for anything else."""
    return _decoded(_head_states, frame)


def _decoded(decoder: "msgspec.json.Decoder[S]", frame: bytes) -> S:
    if len(frame) > MAX_STATE_BYTES:
        raise WireError(f"a group's state of {len(frame)} bytes is over {MAX_STATE_BYTES}")
    return decoded(decoder, frame, "the state of a group's member")
