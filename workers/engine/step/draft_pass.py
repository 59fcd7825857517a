"""The draft pass: the part of a step in which a drafting network takes in its rows and drafts.

Owns what a forward pass keeps for the drafter, and the rows behind which it drafts. Must not know
the drafters' networks, nor where drafts are kept until they are verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.accept import accept
from kernels.attention import AttentionPlan, PagedPlan
from kernels.pinned import to_device
from workers.engine.drafting.drafter import Drafted, Drafter, DraftStep
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network, Taps
from workers.engine.models.state_slots import StateStep
from workers.engine.step.batch import Numbers, SequenceState
from workers.engine.step.sampler import Picked
from workers.scheduler import Chunk, DraftTiming

PlanRows: TypeAlias = Callable[[Sequence[Chunk], Tensor, int], AttentionPlan | PagedPlan]
"""Called with chunks of S sequences, positions int64 [S] and a number n: plans attention for n rows
of each of these sequences, from its position on."""


class StepRows(NamedTuple):
    """A step of T rows on the device, all int64. `last_rows` are the sampled rows, and
    `sampled_positions` the positions of the sampled tokens. `following` [T] are the tokens behind
    the rows, where the host knows them; None for a drafter that needs none. `in_place`: see
    `DraftStep`.
    """

    token_ids: Tensor
    following: Tensor | None
    positions: Tensor
    last_rows: Tensor
    sampled_positions: Tensor
    plan: AttentionPlan | PagedPlan
    in_place: bool = False


class Kept(NamedTuple):
    """What a forward pass of T rows keeps for the drafter: `taps` [T, taps * hidden size] and the
    last hidden states `hidden` [T, hidden size]; None where the drafter reads none.
    """

    taps: Tensor | None
    hidden: Tensor | None


@final
class DraftPass:
    """The forward passes of a model with a drafter, and the drafter's passes behind them."""

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        drafter: Drafter,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`clock` times passes on a host."""
        self._clock = clock
        self._timing: Callable[[], DraftTiming] = DraftTiming
        self._drafter = drafter
        self._model = model
        self._cache = cache
        last_layer = model.config.num_layers - 1
        self._reads_last = drafter.reads_hidden or last_layer in drafter.taps
        self._num_in_place = 0
        self._room = Kept(None, None)

    @property
    def max_depth(self) -> int:
        """See `Drafter`."""
        return self._drafter.max_depth

    @property
    def takes_decodes(self) -> bool:
        """Whether the drafter can take in decodes within the model's pass; see `decode`."""
        return self._drafter.take_in is not None

    @property
    def cuts_anew(self) -> bool:
        """See `Drafter`."""
        return self._drafter.cuts_anew

    def take_timing(self) -> Callable[[], DraftTiming]:
        """A function that returns the time of the draft pass behind the last step; call it when
        that pass is over. Without a pass it returns zeros. On a host passes that only take rows in
        count too.
        """
        timing, self._timing = self._timing, DraftTiming
        return timing

    def now(self) -> float:
        """The time of a host, for `draft`."""
        return self._clock()

    def keep_in_place(self, num_rows: int) -> None:
        """Take memory at fixed addresses, where captured steps of up to `num_rows` rows leave what
        the drafter reads.
        """
        self._room = self._new(num_rows)
        self._num_in_place = num_rows

    def kept(self, num_rows: int) -> Kept:
        """Room for what a step of `num_rows` rows keeps: in place if it fits there, else new."""
        if num_rows > self._num_in_place:
            return self._new(num_rows)
        return Kept(*[None if one is None else one[:num_rows] for one in self._room])

    def _new(self, num_rows: int) -> Kept:
        like, width = self._model.weights.embedding, self._model.config.hidden_size
        num_taps = len(self._drafter.taps)
        taps = like.new_empty(num_rows, width * num_taps) if num_taps else None
        return Kept(taps, like.new_empty(num_rows, width) if self._reads_last else None)

    def forward(
        self,
        hidden: Tensor,
        plan: AttentionPlan | PagedPlan,
        last_rows: Tensor | None,
        states: StateStep | None = None,
    ) -> tuple[Tensor, Kept]:
        """The result of `Network.forward` for `last_rows` (None: all rows), and what is kept of all
        rows.
        """
        kept = self.kept(hidden.shape[0])
        taps = None if kept.taps is None else Taps(self._drafter.taps, kept.taps)
        rows = None if self._reads_last else last_rows
        last = self._model.forward(hidden, plan, self._cache, rows, taps, states)
        if kept.hidden is None:
            return last, kept
        kept.hidden.copy_(last)
        return last if last_rows is None else last[last_rows], kept

    def keep_ids(self, room: Tensor, token_ids: Tensor) -> None:
        """Keep the ids of a captured step's rows at a fixed address, for the drafter."""
        room.copy_(token_ids)

    def keep_last(self, room: Tensor, last_token: Tensor, table_rows: Tensor) -> None:
        """Keep the ids of a captured step of decodes, which are the last tokens of their table
        rows.
        """
        room.copy_(last_token.index_select(0, table_rows.long()))

    def decode(self, hidden: Tensor, plan: PagedPlan) -> Tensor:
        """The result of `Network.forward` for single rows, which the drafter takes in too."""
        kept, take_in = self.kept(hidden.shape[0]), self._drafter.take_in
        assert kept.taps is not None
        assert take_in is not None
        taps = Taps(self._drafter.taps, kept.taps)
        last = self._model.forward(hidden, plan, self._cache, None, taps)
        take_in(kept.taps, plan)
        return last

    def draft(
        self,
        rows: StepRows,
        kept: Kept,
        picked: Picked,
        sampling: Sequence[Chunk],
        plan_rows: PlanRows,
        begun: float | None = None,
    ) -> tuple[Sequence[Chunk], Drafted]:
        """Take the step in and draft. Returns the chunks of `sampling` that ask for drafts, all for
        the same number, and their drafts. On a host the time of the pass counts from `begun` (see
        `now`), which includes the work before this call.
        """
        chosen = [index for index, chunk in enumerate(sampling) if chunk.num_to_draft]
        chunks = [sampling[index] for index in chosen]
        device, own = picked.ids.device, anchor_rows(picked)
        if len(chosen) < len(sampling):
            own = own[_on(chosen, device)]
        positions = rows.sampled_positions[own]
        step = DraftStep(
            token_ids=rows.token_ids,
            next_ids=self._next_ids(rows, picked),
            positions=rows.positions,
            taps=kept.taps,
            hidden=kept.hidden,
            plan=rows.plan,
            seqs=tuple([chunk.seq for chunk in chunks]),
            rows=rows.last_rows[own],
            anchors=picked.ids[own].clamp(min=0),
            anchor_positions=positions,
            depth=max([chunk.num_to_draft for chunk in chunks], default=0),
            plan_rows=lambda num_rows, offset: plan_rows(chunks, positions + offset, num_rows),
            in_place=rows.in_place,
        )
        begin = self._mark(device) if begun is None else begun
        drafted = self._drafter.draft(step)
        if step.depth or device.type == "cpu":
            self._timing = partial(_timing, len(chunks), step.depth, begin, self._mark(device))
        # A drafter of another vocabulary must not make the embedding read past its end.
        return chunks, replace(drafted, ids=drafted.ids.clamp(0, self._model.config.vocab_size - 1))

    def _mark(self, device: torch.device) -> torch.cuda.Event | float:
        """Now; on a card an event behind all that was launched so far."""
        if device.type != "cuda":
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _next_ids(self, rows: StepRows, picked: Picked) -> Tensor:
        """The tokens behind the rows; for a drafter that reads none, any tensor of that shape."""
        if rows.following is None:
            return rows.token_ids
        return rows.following.index_copy(0, rows.last_rows, picked.ids.clamp(min=0))


@final
class NoDraftPass:
    """`DraftPass` of a model without a drafter: forward passes keep nothing."""

    max_depth: Final = 0
    takes_decodes: Final = False

    def __init__(self, model: Network, cache: KvCache) -> None:
        self._model = model
        self._cache = cache

    def forward(
        self,
        hidden: Tensor,
        plan: AttentionPlan | PagedPlan,
        last_rows: Tensor | None,
        states: StateStep | None = None,
    ) -> tuple[Tensor, Kept]:
        """The result of `Network.forward` for `last_rows` (None: all rows)."""
        return self._model.forward(hidden, plan, self._cache, last_rows, states=states), _NOTHING

    def keep_in_place(self, num_rows: int) -> None:
        """Take no memory."""

    def keep_ids(self, room: Tensor, token_ids: Tensor) -> None:
        """Keep nothing."""

    def keep_last(self, room: Tensor, last_token: Tensor, table_rows: Tensor) -> None:
        """Keep nothing."""

    def decode(self, hidden: Tensor, plan: PagedPlan) -> Tensor:
        """Do nothing: this pass never `takes_decodes`."""
        raise NotImplementedError


_NOTHING: Final = Kept(None, None)


def draft_pass_of(
    model: Network, cache: KvCache, drafter: Drafter | None
) -> DraftPass | NoDraftPass:
    """The forward passes of a model on a card, with its drafter or without."""
    return NoDraftPass(model, cache) if drafter is None else DraftPass(model, cache, drafter)


def _timing(
    num_sequences: int,
    depth: int,
    begin: torch.cuda.Event | float,
    end: torch.cuda.Event | float,
) -> DraftTiming:
    if isinstance(begin, float) or isinstance(end, float):
        seconds = float(end) - float(begin)  # type: ignore[arg-type]
    else:
        seconds = 1e-3 * begin.elapsed_time(end)
    return DraftTiming(num_sequences, depth, seconds)


def anchor_rows(picked: Picked) -> Tensor:
    """The row of `picked` with each sequence's last new token, int64 [S]: the row behind the
    sequence's accepted drafts.
    """
    num_seqs, device = len(picked.seqs), picked.ids.device
    if picked.ends is not None:
        return picked.ends
    if picked.drafts is None:
        return torch.arange(num_seqs, device=device)
    firsts = first_rows(picked)
    nowhere = torch.zeros(0, dtype=torch.int32, device=device)
    tables = torch.full((num_seqs,), -1, dtype=torch.int32, device=device)
    return accept(picked.ids, picked.drafts, firsts, nowhere, nowhere, tables)


def first_rows(picked: Picked) -> Tensor:
    """The first row of each sequence of a step that verifies drafts, int64 [S]."""
    sizes = [1 + num_drafts for num_drafts in picked.num_drafts]
    return _on(np.cumsum([0, *sizes[:-1]]), picked.ids.device)


def following_ids(chunks: Sequence[Chunk], states: Mapping[int, SequenceState]) -> Numbers:
    """The token behind each row of `chunks`, where the host knows it, else 0."""
    found = []
    for chunk in chunks:
        tokens = states[chunk.seq].tokens[chunk.start + 1 : chunk.start + 1 + chunk.length]
        padding = [0] * (chunk.num_rows - len(tokens))
        found.append(np.array([*tokens, *padding], np.int64))
    return np.concatenate(found)


def _on(indices: Sequence[int] | Numbers, device: torch.device) -> Tensor:
    return to_device(np.array(indices, np.int32), device).long()
