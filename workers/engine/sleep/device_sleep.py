"""The sleep of an engine: weights, keys, values and states leave its device and come back.

Owns the order of both, what the host keeps meanwhile, and the proof that it is what came back. Must
not know which prefixes are cached (they are named), when the engine sleeps, nor how memory is
mapped (`pages.py`).

- Weights have a copy on the host, which a thread makes after the start and which stays: a sleep
  copies none, a wake copies all. Where the host lacks the memory for it they are read again.
- Of keys, values and states the rows that prefixes hold are copied at each sleep, as many as have
  room in memory that was made ready before.
- Counts of sequences and the stacks of kernels are given back: nothing in them is to be kept.
- All else stays: the context, the memory of graphs, workspaces, tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

import torch
from torch import Tensor

from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.engine.sleep.arena import Arena
from workers.engine.sleep.host_store import PIECE_BYTES, HostStore
from workers.engine.sleep.kept_rows import KeptRows, RowGroup, sum_of
from workers.engine.sleep.pages import NoMemoryError, Pages
from workers.loop import MemoryMove
from workers.memory_room import MemoryRoom
from workers.scheduler import HeldCounts, HeldPlaces
from workers.tier_size import default_bytes

Reload = Callable[[], None]

WEIGHTS_SHARE: Final = 0.8
"""Weights are kept on the host if they take at most this share of what is free there."""

_WEIGHTS_PIECE: Final = 256 * 2**20
_SUMMED: Final = 2**30
_COPIED_AT_ONCE: Final = 16 * 2**20
"""Bytes while the engine serves: a copy of its steps waits 0.3 ms behind one of these."""
_LEAST_PIECE: Final = 2**20
_PIECES: Final = 16


@final
class DeviceSleep:
    """The memory of one engine on `device` that comes from `pages`, at most `most_bytes` of each of
    two kinds. Weights are moved here when they are loaded (`adopt`); `place` takes memory for
    caches and states. Then `begin`. See `workers.loop.NativeSleep` for the rest.
    """

    why: Final = ""

    def __init__(self, pages: Pages, device: torch.device, most_bytes: int) -> None:
        self._pages = pages
        self._device = device
        self._card = device if device.type == "cuda" else None
        relieve = _nothing if self._card is None else torch.cuda.empty_cache
        self._weights = Arena(pages, most_bytes, _WEIGHTS_PIECE, relieve)
        self._kept = Arena(pages, most_bytes, relieve=relieve)
        self._reloads: list[Reload] = []
        self._rows: KeptRows | None = None
        self._weights_store: HostStore | None = None
        self._rows_store = HostStore(0, lambda: MemoryRoom(0, "nothing"))
        self._weight_sums: list[int] = []
        self._held = HeldCounts()
        self._groups: list[RowGroup] = []
        self._row_sums: list[int] = []
        # Weights come back on a stream of their own. Rows have two, so that one group of them comes
        # over the bus while another one goes to its place.
        self._side, *self._lanes = [self._stream() for _ in range(3)]

    def __repr__(self) -> str:
        return f"<DeviceSleep {self._weights!r} {self._kept!r}>"

    @property
    def num_bytes(self) -> int:
        """Bytes of the device that a sleep gives back."""
        return self._weights.num_bytes + self._kept.num_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of the host that are ready for sleeps. They stay until the process ends."""
        weights = 0 if self._weights_store is None else self._weights_store.num_bytes
        return weights + self._rows_store.num_bytes

    def adopt(self, weights: Iterable[Tensor], reload: Reload) -> None:
        """Move the memory of these weights into this one, in place. Weights of another device stay
        where they are. `reload` fills them again.
        """
        self._reloads.append(reload)
        self._weights.adopt([one for one in weights if one.device == self._device])
        self._weights.be_tight()  # other users of the card count on the free memory from now on

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for a cache or for states. Raises `torch.OutOfMemoryError`."""
        return self._kept.place(shape, dtype)

    def begin(self, rows: KeptRows, room: Callable[[], MemoryRoom]) -> None:
        """Begin to copy the weights to the host, if its `room` allows it; call it when the engine
        is ready.
        """
        size, left = self._weights.used.nbytes, room().num_bytes
        if size <= WEIGHTS_SHARE * left:
            most = size + PIECE_BYTES
            self._weights_store = HostStore(most, room, self._card, self._copy_weights)
            self._weights_store.want(size)
            left -= size
        most = default_bytes(left, self._kept.num_bytes)
        piece = max(_LEAST_PIECE, min(PIECE_BYTES, most // _PIECES // _LEAST_PIECE * _LEAST_PIECE))
        self._rows_store = HostStore(most, room, self._card, piece_bytes=piece)
        self._rows = rows

    def expect(self, held: HeldCounts) -> None:
        """See `NativeSleep`."""
        if self._rows is not None:
            self._rows_store.want(self._rows.num_bytes(held))

    def fits(self, held: HeldCounts) -> bool:
        """See `NativeSleep`."""
        return self._rows is not None and self._rows.num_bytes(held) <= self._rows_store.num_bytes

    @torch.inference_mode()
    def fall_asleep(self, held: HeldPlaces) -> MemoryMove:
        """See `NativeSleep`."""
        if self._rows is None:
            return MemoryMove("it has not begun to serve")
        if self._weights_store is not None:
            self._weights_store.wait()
            if self._weights_store.trouble:
                self._weights_store = None
        if not self._weight_sums:
            self._weight_sums = _numbers(self._sums_of_weights())
        self._settle()
        self._weights.give_back()
        has_rows = True
        try:
            self._groups = self._rows.groups(held)
            self._row_sums = _numbers(self._store_rows())
        except torch.OutOfMemoryError:  # another user of the card took the free memory first
            self._groups, self._row_sums, has_rows = [], [], False
        self._held = held.counts if has_rows else HeldCounts()
        self._settle()
        self._kept.give_back()
        self._pages.let_stacks_go()
        return MemoryMove(host_bytes=self.host_bytes, note=self._note(), has_rows=has_rows)

    @torch.inference_mode()
    def wake(self) -> MemoryMove:
        """See `NativeSleep`."""
        assert self._rows is not None
        try:
            weight_sums, row_sums = self._take_all()
        except (NoMemoryError, torch.OutOfMemoryError) as error:
            self._settle()
            for arena in (self._weights, self._kept):
                if arena.is_taken:
                    arena.give_back()
            self._pages.let_stacks_go()
            return MemoryMove(f"others have taken the memory ({error})", is_asleep=True)
        except (ConfigError, OSError, RuntimeError) as error:
            return MemoryMove(f"its weights cannot be read again: {error}")
        if weight_sums != self._weight_sums:
            return MemoryMove("its weights are not what they were")
        if row_sums != self._row_sums:
            note = "its cached prefixes are not what they were, and are forgotten"
            return MemoryMove(host_bytes=self.host_bytes, note=note, has_rows=False)
        return MemoryMove(host_bytes=self.host_bytes, note=self._note())

    def _take_all(self) -> tuple[list[int], list[int]]:
        """Take all memory with what it held. Returns the sums of weights and of rows. Raises
        `NoMemoryError`, `torch.OutOfMemoryError`, and what reading weights raises.
        """
        self._pages.take_stacks()
        self._weights.take()
        self._load_weights()
        self._kept.take()
        self._kept.used.zero_()
        row_sums = self._load_rows()
        with torch.cuda.stream(self._side):
            weight_sums = self._sums_of_weights()
        self._join()
        found = _numbers(weight_sums), _numbers(row_sums)
        if self._card is not None:
            torch.cuda.empty_cache()  # frees the buffers through which rows came
        return found

    def _stream(self) -> torch.cuda.Stream | None:
        if self._card is None:
            return None
        return torch.cuda.Stream(self._card)  # type: ignore[no-untyped-call]

    def _join(self) -> None:
        """Let the stream of the steps wait for all others."""
        for stream in (self._side, *self._lanes):
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)

    def _note(self) -> str:
        assert self._rows is not None
        where = "the weights are on the host"
        if self._weights_store is None:
            where = "the host has no room for the weights, which are read again at a wake"
        return f"{where}, with {bytes_text(self._rows.num_bytes(self._held))} of prefixes"

    def _copy_weights(self, at: int, piece: Tensor) -> None:
        """Copy what belongs into a piece of the host's memory, by the thread that has made it."""
        used = self._weights.used
        whole = piece[: max(0, used.nbytes - at)]
        if self._card is None:
            whole.copy_(used[at : at + len(whole)])
            return
        stream = torch.cuda.Stream(self._card)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for begin in range(0, len(whole), _COPIED_AT_ONCE):
                part = whole[begin : begin + _COPIED_AT_ONCE]
                part.copy_(used[at + begin : at + begin + len(part)], non_blocking=True)
                stream.synchronize()

    def _load_weights(self) -> None:
        store, used = self._weights_store, self._weights.used
        if store is None:
            for reload in self._reloads:
                reload()
            self._settle()
            return
        with torch.cuda.stream(self._side):
            for begin, part in store.parts(0, used.nbytes):
                used[begin : begin + len(part)].copy_(part, non_blocking=True)

    def _store_rows(self) -> list[Tensor]:
        sums, at = [], 0
        for group in self._groups:
            gathered = group.gathered()
            for begin, part in self._rows_store.parts(at, gathered.nbytes):
                part.copy_(gathered[begin : begin + len(part)], non_blocking=True)
            sums.append(sum_of(gathered))
            at += gathered.nbytes
        return sums

    def _load_rows(self) -> list[Tensor]:
        sums, at = [], 0
        for lane in self._lanes:
            if lane is not None:  # zeros come before rows
                lane.wait_stream(torch.cuda.current_stream())
        for number, group in enumerate(self._groups):
            with torch.cuda.stream(self._lanes[number % 2]):
                gathered = group.empty()
                for begin, part in self._rows_store.parts(at, gathered.nbytes):
                    gathered[begin : begin + len(part)].copy_(part, non_blocking=True)
                sums.append(sum_of(gathered))
                group.scatter(gathered)
                at += gathered.nbytes
        return sums

    def _sums_of_weights(self) -> list[Tensor]:
        return [sum_of(part) for part in torch.split(self._weights.used, _SUMMED)]

    def _settle(self) -> None:
        """Wait for the device, and give back what torch keeps for later."""
        if self._card is not None:
            torch.cuda.synchronize(self._card)
            torch.cuda.empty_cache()


@final
class NoSleep:
    """`DeviceSleep` of an engine that sleeps by its end: memory is taken as torch does. `why`: for
    people, "" if it is not to sleep at all.
    """

    num_bytes: Final = 0
    place: Final = None

    def __init__(self, why: str = "") -> None:
        self.why = why

    def adopt(self, weights: Iterable[Tensor], reload: Reload) -> None:
        """Leave the weights where they are."""


def _numbers(sums: Sequence[Tensor]) -> list[int]:
    return torch.stack(list(sums)).tolist() if sums else []


def _nothing() -> None:
    """Do nothing: the host keeps no memory that is not used."""
