"""Plans of a few sequences, and runners that compute as on a card."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from kernels.attention import SharingCosts
from protocol.sampling import SamplingParams
from workers.engine.graphs.capture import Capture
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Chunk, Sampled, SequenceStart, StepPlan

BLOCK = 16
NUM_SEQS = 6
PROMPTS = {1: [5, 9, 2] * 7, 2: [3], 3: [11, 12] * 20, 4: [7] * 16}
GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
DRAWN = SamplingParams(max_tokens=50, temperature=1.1)
FILTERED = SamplingParams(max_tokens=50, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
GENERAL = SamplingParams(
    max_tokens=50, temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, logprobs=2
)


def as_on_card(
    host: ModelRunner, capture: Capture | None = None, sharing: SharingCosts | None = None
) -> ModelRunner:
    """A runner that computes as on a card: the same weights, a cache that was never written. With
    `capture`, every graph is captured.
    """
    for keys, values in host.cache.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    facts = host.facts
    steps = DeviceSteps(host.model, host.cache, facts, capture, sharing=sharing)
    while capture is not None and steps.prepare(pending_only=False):
        pass
    return ModelRunner(host.model, host.cache, facts, host.model_dir, steps)


def start_of(seq: int, sampling: SamplingParams, prompt: list[int] | None = None) -> SequenceStart:
    ids = array("I", prompt or PROMPTS[seq])
    return SequenceStart(seq, ids, len(ids), sampling, seed=seq + 2**40)


def _blocks(seq: int, end: int) -> tuple[int, ...]:
    """Scattered blocks: sequence n owns every fourth."""
    return tuple(seq - 1 + 4 * index for index in range(-(-end // BLOCK)))


def plans_of(sampling: dict[int, SamplingParams], num_steps: int) -> list[StepPlan]:
    """All prompts at once, the third in two chunks, then one token each per step."""
    whole = [Chunk(s, 0, len(p), _blocks(s, len(p)), s != 3) for s, p in PROMPTS.items() if s != 3]
    first = Chunk(3, 0, 17, _blocks(3, 17), samples=False)
    starts = tuple(start_of(seq, sampling[seq]) for seq in PROMPTS)
    plans = [StepPlan(1, starts, (*whole, first), ())]
    done = {seq: len(prompt) for seq, prompt in PROMPTS.items()}
    for step in range(num_steps):
        rest = [Chunk(3, 17, 23, _blocks(3, 40), samples=True)] if step == 0 else []
        chunks = []
        for seq in PROMPTS:
            if seq == 3 and step == 0:
                continue
            chunks.append(Chunk(seq, done[seq], 1, _blocks(seq, done[seq] + 1), samples=True))
            done[seq] += 1
        plans.append(StepPlan(step + 2, (), (*chunks, *rest), ()))
    return plans


def outputs_of(runner: ModelRunner, plans: list[StepPlan], ahead: int) -> dict[int, list[Sampled]]:
    """What each sequence sampled, with `ahead` steps launched before the first is collected."""
    outputs: dict[int, list[Sampled]] = {seq: [] for seq in PROMPTS}
    flying = []
    for plan in plans:
        flying.append(runner.launch(plan))
        if len(flying) > ahead:
            for item in runner.collect(flying.pop(0)).sampled:
                outputs[item.seq].append(item)
    for step in flying:
        for item in runner.collect(step).sampled:
            outputs[item.seq].append(item)
    return outputs


class Life(NamedTuple):
    """A sequence that comes at a step, with a prompt that is computed in chunks of `cut` tokens."""

    comes: int
    num_prompt: int
    cut: int
    sampling: SamplingParams


def plans_of_lives(lives: Sequence[Life], num_steps: int) -> list[StepPlan]:
    """Every sequence goes on in every step: by a chunk of its prompt, then by a token."""
    done = [0] * len(lives)
    plans = []
    for step in range(num_steps):
        starts, chunks = [], []
        for seq, life in enumerate(lives):
            if life.comes > step:
                continue
            if life.comes == step:
                prompt = [2 + (7 * seq + 3 * index) % 149 for index in range(life.num_prompt)]
                starts.append(start_of(seq, life.sampling, prompt))
            length = min(life.cut, max(1, life.num_prompt - done[seq]))
            end = done[seq] + length
            blocks = tuple(seq + NUM_SEQS * index for index in range(-(-end // BLOCK)))
            chunks.append(Chunk(seq, done[seq], length, blocks, end >= life.num_prompt))
            done[seq] = end
        if chunks:
            plans.append(StepPlan(step, tuple(starts), tuple(chunks), ()))
    return plans


class Branch(NamedTuple):
    """A sequence that comes at a step and ends at another. Its first `num_shared` blocks are those
    of sequence `parent`, which has computed them.
    """

    comes: int
    ends: int
    parent: int
    num_shared: int
    num_own: int


def plans_of_branches(
    branches: Sequence[Branch], num_steps: int, sampling: SamplingParams
) -> list[StepPlan]:
    """Every sequence computes what it does not share in its first step, then goes on by tokens."""
    held: dict[int, tuple[int, ...]] = {}
    prompts: dict[int, list[int]] = {}
    done: dict[int, int] = {}
    free = iter(range(10_000))
    plans = []
    for step in range(num_steps):
        starts, chunks = [], []
        for seq, branch in enumerate(branches):
            if not branch.comes <= step < branch.ends:
                continue
            if branch.comes == step:
                shared = branch.num_shared * BLOCK
                known = prompts.get(branch.parent, [])[:shared]
                own = [2 + (7 * seq + 3 * index) % 149 for index in range(branch.num_own)]
                prompts[seq], done[seq] = known + own, len(known)
                held[seq] = held.get(branch.parent, ())[: branch.num_shared]
                starts.append(start_of(seq, sampling, prompts[seq]))
            first = done[seq]
            done[seq] = max(len(prompts[seq]), first + 1)
            missing = -(-done[seq] // BLOCK) - len(held[seq])
            if missing > 0:
                held[seq] += tuple([next(free) for _ in range(missing)])
            chunks.append(Chunk(seq, first, done[seq] - first, held[seq], samples=True))
        ended = tuple([seq for seq, branch in enumerate(branches) if branch.ends == step])
        plans.append(StepPlan(step, tuple(starts), tuple(chunks), ended))
    return plans


def sampled_by(
    runner: ModelRunner, plans: Sequence[StepPlan], ahead: int
) -> list[dict[int, Sampled]]:
    """The sampled tokens by step and sequence, with `ahead` steps launched before the first is
    collected.
    """
    flying, found = [], []
    for plan in plans:
        flying.append(runner.launch(plan))
        if len(flying) > ahead:
            found.append(runner.collect(flying.pop(0)))
    found += [runner.collect(step) for step in flying]
    assert not any(result.failed for result in found)
    return [{item.seq: item for item in result.sampled} for result in found]


def without_memory_once(
    call: Callable[..., Any], error: type[RuntimeError] = torch.OutOfMemoryError
) -> Callable[..., Any]:
    """`call`, but the first time there is no memory for it: torch's own, or `RuntimeError` of the
    driver's.
    """
    errors = [error("CUDA error: out of memory")]

    def limited(*args: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return call(*args, **named)

    return limited
