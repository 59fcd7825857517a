"""From logits to tokens, for the sequences of one step, without waiting for the device.

Owns which logits are drawn from, log-probabilities, and what is read back of a step. Must not know
the network; the draw itself is `kernels.sample`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from kernels.pinned import to_device
from kernels.sample import logprobs, pick
from protocol.messages import TokenLogprobs
from workers.engine.models.state_slots import Place
from workers.engine.step.batch import SequenceState
from workers.engine.step.draws import WIDENED_ROWS, DrawTable, is_adjusted
from workers.engine.step.masks import MaskTable
from workers.engine.step.penalties import PenaltyTable
from workers.scheduler import Sampled


@dataclass(frozen=True, slots=True)
class Picked:
    """The tokens of one step of S sequences and R sampled rows, still on the device.

    - `ids` int64 [R], -1 where the logits are not numbers, in the order of `seqs`.
    - `wanted`: the rows that asked for log-probabilities, with the number of alternatives;
      `scores` are those rows' results of `kernels.sample.logprobs`.
    - In a step that verifies drafts each sequence has a row more for each of its `num_drafts`.
      `drafts` int64 [R] is what a row's token is compared with, -1 in a sequence's last row.
    - `ends` int64 [S] are each sequence's rows behind its accepted drafts, if they are known.
    """

    seqs: tuple[int, ...]
    ids: Tensor
    wanted: tuple[tuple[int, int], ...] = ()
    scores: tuple[Tensor, Tensor, Tensor] | None = None
    drafts: Tensor | None = None
    num_drafts: tuple[int, ...] = ()
    ends: Tensor | None = None


class VerifiedDrafts(NamedTuple):
    """A sequence of a step that verifies, with its drafts, if it has some."""

    state: SequenceState
    drafts: tuple[int, ...]


@final
class Sampler:
    """Samples rows of logits of up to `max_rows` sequences, and keeps their token counts until
    `forget`, in memory of `place`, None: torch's. A step that verifies has up to `max_verified`
    rows, if that is more.
    """

    def __init__(
        self,
        vocab_size: int,
        max_rows: int,
        device: torch.device,
        max_verified: int = 0,
        place: Place | None = None,
    ) -> None:
        self.draws = DrawTable(vocab_size, max(max_rows, max_verified), device)
        # The parameters of adjusted rows in a step that has other rows too.
        self._drawn_apart = DrawTable(vocab_size, max_rows, device)
        self._penalties = PenaltyTable(vocab_size, max_rows, device, place)
        self._masks = MaskTable(vocab_size, max_rows, device)
        self._vocab_size = vocab_size
        self._device = device

    def forget(self, seqs: Sequence[int]) -> None:
        """Drop the state of ended sequences: their numbers may be reused."""
        self.draws.forget(seqs)
        self._drawn_apart.forget(seqs)
        self._penalties.forget(seqs)

    def draw(self, logits: Tensor, checked: Sequence[VerifiedDrafts], positions: Tensor) -> Picked:
        """Draw the tokens of a step: by `verify` if there are drafts, else by `sample`."""
        if any(one.drafts for one in checked):
            return self.verify(logits, checked, positions)
        return self.sample(logits, [one.state for one in checked], positions)

    def sample(self, logits: Tensor, states: Sequence[SequenceState], positions: Tensor) -> Picked:
        """One token for each row of logits [S, vocab], at its absolute position (int [S])."""
        self.draws.arrange(states)
        adjusted = self._penalties.arrange(states)
        if not adjusted.shape[0]:
            ids = self._pick(logits, positions)
        elif adjusted.shape[0] == len(states):
            ids = self._pick_adjusted(logits, states, None, self.draws, positions)
        else:
            members = [state for state in states if is_adjusted(state)]
            self._drawn_apart.arrange(members)
            # All rows are drawn, then the rows of `members` again: to select the other rows would
            # cost more.
            ids = self._pick(logits, positions)
            own = self._pick_adjusted(
                logits, members, adjusted, self._drawn_apart, positions[adjusted]
            )
            ids.index_copy_(0, adjusted, own)
        scores = self._scores(logits, ids, states)
        return Picked(tuple([state.seq for state in states]), ids, *scores)

    def count(self, picked: Picked) -> None:
        """Count the sampled tokens as outputs. Call it after everything else that takes memory: a
        step that runs out of memory is repeated, and must find the old counts.
        """
        if picked.drafts is None:
            self._penalties.count(picked.ids)

    def verify(
        self,
        logits: Tensor,
        checked: Sequence[VerifiedDrafts],
        positions: Tensor,
        drafts: Tensor | None = None,
    ) -> Picked:
        """One token for each row of logits [R, vocab], at its absolute position (int [R]). A
        sequence has one row, and one more behind each of its drafts. Counts accepted tokens as
        outputs.

        The host knows all tokens before the drafts. `drafts` int64 [R] become `Picked.drafts`; None
        takes the ids in `checked`. The ids of a sequence with a grammar are always in `checked`.
        """
        states = [one.state for one in checked for _ in range(1 + len(one.drafts))]
        self.draws.arrange(states)
        ids = self._pick(logits, positions)
        if drafts is None:
            flat = [draft for one in checked for draft in (*one.drafts, -1)]
            drafts = to_device(np.array(flat, np.int32), self._device).long()
        try:
            for members in _rounds(checked):
                self._verify_adjusted(logits, members, positions, ids, drafts)
            wanted, scores = self._scores(logits, ids, states)
        except (RuntimeError, MemoryError):
            # Some rounds have counted. The step is repeated and sets the counts up again.
            self._penalties.forget([one.state.seq for one in checked])
            raise
        seqs = tuple([one.state.seq for one in checked])
        num_drafts = tuple([len(one.drafts) for one in checked])
        return Picked(seqs, ids, wanted, scores, drafts, num_drafts)

    def _verify_adjusted(
        self,
        logits: Tensor,
        members: Sequence[tuple[int, VerifiedDrafts]],
        positions: Tensor,
        ids: Tensor,
        drafts: Tensor,
    ) -> None:
        """Draw one row of each of the `members`, all behind the same number of drafts, into `ids`.
        Rounds go from no draft upwards, so that an accepted draft counts as an output in the rows
        behind it.
        """
        at = [row for row, _ in members]
        rows = to_device(np.array(at, np.int32), self._device).long()
        states = [one.state for _, one in members]
        self._penalties.arrange(states)
        self._drawn_apart.arrange(states)
        seen = [one.drafts for _, one in members]
        own = self._pick_adjusted(
            logits[rows], states, None, self._drawn_apart, positions[rows], seen
        )
        ids.index_copy_(0, rows, own)
        is_reached = _reached(ids, drafts, rows, len(seen[0]))
        self._penalties.count(torch.where(is_reached, own, -1))

    def _pick(self, logits: Tensor, positions: Tensor) -> Tensor:
        draws = self.draws.rows(logits.shape[0], filtered=self.draws.filtered)
        return pick(logits, draws, positions)

    def _pick_adjusted(
        self,
        logits: Tensor,
        members: Sequence[SequenceState],
        rows: Tensor | None,
        draws: DrawTable,
        positions: Tensor,
        seen: Sequence[tuple[int, ...]] = (),
    ) -> Tensor:
        """Draw the rows of `members`, which have penalties or grammars: `rows` of the logits (None:
        all). `draws`, `positions` and the drafts `seen` before each row are those of `members`.
        """
        # A card computes the network while the host fills masks.
        lone = self._masks.fill(members, seen)
        if lone is not None:
            return self._given(logits, lone, rows)
        parts = []
        for begin, end, adjusted in self._penalties.adjust(logits):
            self._masks.apply(adjusted, begin, end)
            own = draws.rows(end - begin, filtered=draws.filtered, first=begin)
            parts.append(pick(adjusted, own, positions[begin:end]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _given(self, logits: Tensor, lone: list[int], rows: Tensor | None) -> Tensor:
        """The tokens `lone`, the only ones that the rows can have, without a draw; -1 where the
        logit is not a finite number.
        """
        ids = to_device(np.array(lone, np.int32), self._device).long()
        at = torch.arange(len(lone), device=self._device) if rows is None else rows
        return torch.where(logits[at, ids].isfinite(), ids, -1)

    def _scores(
        self, logits: Tensor, ids: Tensor, states: Sequence[SequenceState]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[Tensor, Tensor, Tensor] | None]:
        """`wanted` and `scores` of `Picked`: log-softmax of the raw logits, before penalties and
        filters.
        """
        wanted = tuple(
            (row, state.sampling.logprobs)
            for row, state in enumerate(states)
            if state.sampling.logprobs is not None
        )
        if not wanted:
            return (), None
        rows = to_device(np.array([row for row, _ in wanted], np.int32), self._device).long()
        num_top = min(max(num for _, num in wanted), self._vocab_size)
        parts = [
            logprobs(logits[part], ids[part], num_top) for part in torch.split(rows, WIDENED_ROWS)
        ]
        own, values, top = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return wanted, (own, values, top)


def _rounds(checked: Sequence[VerifiedDrafts]) -> Iterator[list[tuple[int, VerifiedDrafts]]]:
    """The rows with penalties or grammars in rounds: first those behind no draft, then those behind
    one, and so on. Each row comes with its sequence and the drafts before it.
    """
    found: list[list[tuple[int, VerifiedDrafts]]] = []
    row = 0
    for one in checked:
        num_rows = 1 + len(one.drafts)
        if is_adjusted(one.state):
            found += [[] for _ in range(num_rows - len(found))]
            for depth in range(num_rows):
                found[depth].append((row + depth, VerifiedDrafts(one.state, one.drafts[:depth])))
        row += num_rows
    yield from found


def _reached(ids: Tensor, drafts: Tensor, rows: Tensor, depth: int) -> Tensor:
    """Whether each of `rows` [n] stands behind `depth` drafts that are all accepted, bool [n]."""
    before = rows.unsqueeze(1) - torch.arange(1, depth + 1, device=rows.device)
    return (ids[before] == drafts[before]).all(dim=1)


def read(picked: Picked) -> tuple[list[Sampled], list[int]]:
    """The tokens, and the sequences whose logits are not numbers. Waits for the device."""
    ids: list[int] = picked.ids.tolist()
    scores = _read_scores(picked)
    if picked.drafts is not None:
        return _read_verified(picked, ids, picked.drafts.tolist(), scores)
    good = [
        Sampled(seq, (token_id,), scores.get(row, ()))
        for row, (seq, token_id) in enumerate(zip(picked.seqs, ids, strict=True))
        if token_id >= 0
    ]
    return good, [seq for seq, token_id in zip(picked.seqs, ids, strict=True) if token_id < 0]


def _read_verified(
    picked: Picked, ids: list[int], drafts: list[int], scores: dict[int, tuple[TokenLogprobs]]
) -> tuple[list[Sampled], list[int]]:
    """The accepted drafts of each sequence and the token behind them."""
    good, broken = [], []
    row = 0
    for seq, num_drafts in zip(picked.seqs, picked.num_drafts, strict=True):
        end = row
        while ids[end] >= 0 and ids[end] == drafts[end]:
            end += 1
        accepted = range(row, end + 1)
        if ids[end] < 0:
            broken.append(seq)
        else:
            own = [score for at in accepted for score in scores.get(at, ())]
            good.append(Sampled(seq, tuple(ids[row : end + 1]), tuple(own)))
        row += 1 + num_drafts
    return good, broken


def _read_scores(picked: Picked) -> dict[int, tuple[TokenLogprobs]]:
    if picked.scores is None:
        return {}
    own, values, ids = (tensor.tolist() for tensor in picked.scores)
    found = {}
    for index, (row, num_top) in enumerate(picked.wanted):
        top = tuple(zip(ids[index], values[index], strict=True))
        found[row] = (TokenLogprobs(own[index], top[:num_top]),)
    return found
