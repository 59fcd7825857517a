"""The largest steps a worker can meet, each run once to see what memory it takes.

Owns these steps and the reading of the memory of card and host. Must not know what the result is
used for (`kv_size.py` divides the memory), nor how a step is computed: it calls the runner.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch

from kernels.attention import LIBRARY_GRAIN
from kernels.linear import library_rows
from protocol.messages import EngineFacts
from protocol.sampling import MAX_LOGPROBS, SamplingParams
from workers.engine.memory.budget import CardReading, card_room, vgpu_limit
from workers.engine.memory.forecast import CONTEXT_BYTES
from workers.engine.memory.own_memory import own_bytes
from workers.engine.models.network import Network
from workers.engine.runner import ModelRunner
from workers.memory_room import MemoryRoom, host_room
from workers.scheduler import Chunk, SequenceStart, StepPlan

_LAYERS: Final = 3
"""How many layers are enough: a step through them takes as much memory as through all, in less
time. The first layer may overwrite its input, those behind it hold their input beside their own
rows, and the last keeps only the sampled rows."""


def room(device: torch.device, beside_bytes: int = 0) -> MemoryRoom:
    """What this process may still take of `device`'s memory, of which it holds `beside_bytes` that
    torch does not know of. Raises `ConfigError`.
    """
    if device.type == "cpu":
        return host_room()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    reading = CardReading(
        free=free,
        total=total,
        # The context counts under a vGPU limit, and the driver does not report its owner.
        held=torch.cuda.memory_reserved(device) + beside_bytes + CONTEXT_BYTES,
        is_integrated=bool(torch.cuda.get_device_properties(device).is_integrated),
    )
    return card_room(reading, vgpu_limit(os.environ, device.index), host_room())


def shallow(model: Network) -> Network:
    """The model with a few layers, at least one of each kind, so that a probe is brief."""
    return model.with_layers(model.config.sample(_LAYERS))


def run_largest_steps(runner: ModelRunner) -> None:
    """Run all of `largest_plans`.

    The runner's cache may hold a single block: all imagined sequences lie in block 0, because their
    results do not matter. With recurrent layers these are not even numbers, because a sequence that
    begins in the middle has no state. Raises `torch.OutOfMemoryError` if a step does not fit.
    """
    for plan in largest_plans(runner.facts):
        launched = runner.launch(plan)
        if launched.failed:
            raise torch.OutOfMemoryError(next(iter(launched.failed.values())))
        runner.collect(launched)


def largest_plans(facts: EngineFacts) -> Iterator[StepPlan]:
    """Plans of steps such that no step that a scheduler can plan takes more memory than the largest
    of them. Each plan ends the sequences of the one before.

    First a full batch of draws, with one full chunk at the end of a full window. Then a chunk of
    the whole budget that begins where the library may attend, which gathers all keys and values
    that the chunk sees. Then one whose gates and ups are written to memory (`library_rows`). If the
    window is shorter than the budget there are several chunks in place of one.
    """
    plan = largest_plan(facts)
    yield plan
    most = min(facts.token_budget, facts.max_seqs * (facts.context_length - 1))
    for num_rows in dict.fromkeys((most, library_rows(most))):
        if num_rows:
            plan = _plan(facts, list(_long_segments(facts, num_rows)), ended=plan.chunks)
            yield plan


def _long_segments(facts: EngineFacts, num_rows: int) -> Iterator[tuple[int, int]]:
    """`num_rows` rows in as few chunks as a window allows: where each begins, and its length."""
    longest = facts.context_length - 1
    for begin in range(0, num_rows, longest):
        length = min(longest, num_rows - begin)
        yield (longest - length) // LIBRARY_GRAIN * LIBRARY_GRAIN, length


def largest_plan(facts: EngineFacts) -> StepPlan:
    """`token_budget` tokens in `max_seqs` chunks, every one sampled with all filters on, and with
    as many log-probabilities as can be asked for.
    """
    num_seqs, longest = min(facts.max_seqs, facts.token_budget), facts.context_length - 1
    left, segments = facts.token_budget - num_seqs, []
    for seq in range(num_seqs):
        length = 1 + min(left, longest - 1)
        left -= length - 1
        segments.append((longest - length if seq == 0 or length > 1 else 0, length))
    return _plan(facts, segments)


def _plan(
    facts: EngineFacts, segments: Sequence[tuple[int, int]], ended: Sequence[Chunk] = ()
) -> StepPlan:
    """A plan of chunks (start, length), which first ends the sequences of `ended`."""
    sampling = SamplingParams(
        max_tokens=1, temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, logprobs=MAX_LOGPROBS
    )
    starts, chunks = [], []
    for seq, (start, length) in enumerate(segments):
        tokens = array("I", bytes(4 * (start + length)))
        num_blocks = -(-(start + length) // facts.block_size)
        starts.append(SequenceStart(seq, tokens, len(tokens), sampling, seed=seq))
        ids = (0,) * num_blocks
        chunks.append(Chunk(seq, start, length, ids, samples=True, window_ids=ids))
    return StepPlan(0, tuple(starts), tuple(chunks), tuple([chunk.seq for chunk in ended]))


class CardCount(NamedTuple):
    """Bytes of a card beside torch's allocator: of all processes, and of this one, None if the
    driver does not say.
    """

    of_all: int
    own: int | None


def growth(before: CardCount, after: CardCount) -> tuple[int, int | None]:
    """How much this process has taken, and how much others have. If that is not known all counts as
    its own, and the other is None.
    """
    grown = max(0, after.of_all - before.of_all)
    if before.own is None or after.own is None:
        return grown, None
    own = max(0, after.own - before.own)
    return own, max(0, after.of_all - before.of_all - (after.own - before.own))


class PeakMeter:
    """The peak of memory taken on a card between the start of a `with` and its end.

    `peak_bytes` counts the allocator's peak over the start, and what libraries and compiled
    kernels took beside it; `passing_bytes` is how much of the allocator's peak was free again at
    the end. Both are 0 on a CPU, whose steps are small. `others_bytes` is what other processes
    have taken of the card meanwhile; None if that is not known: then it is in `peak_bytes`.
    """

    def __init__(self, device: torch.device) -> None:
        self.peak_bytes = 0
        self.passing_bytes = 0
        self.others_bytes: int | None = 0
        self._device = device

    def __enter__(self) -> "PeakMeter":
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._allocated = torch.cuda.memory_allocated(self._device)
            self._before = _beside_torch(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
            grown, self.others_bytes = growth(self._before, _beside_torch(self._device))
            self.peak_bytes = peak - self._allocated + grown
            self.passing_bytes = peak - torch.cuda.memory_allocated(self._device)


def _beside_torch(device: torch.device) -> CardCount:
    free, total = torch.cuda.mem_get_info(device)
    of_torch = torch.cuda.memory_reserved(device)
    own = own_bytes(str(torch.cuda.get_device_properties(device).uuid))
    if own is not None:  # a smaller number would belong to another process
        own = own - of_torch if own >= of_torch else None
    return CardCount(total - free - of_torch, own)
