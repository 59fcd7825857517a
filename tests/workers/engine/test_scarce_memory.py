"""Memory that runs out in a step fails the sequence that needed it; no other loses a token.

The answer of a sequence depends on its own tokens, seed and positions alone, so it must be that of
the same request alone on the host, in an engine that has memory for everything.
"""

from collections import Counter, defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from protocol import wire
from protocol.messages import Abort, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import count_tokens
from tests.fakes.scarce_memory import FETCH, PLACES, ScarceMemory, Shortage
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.short_lives import BLOCK, Answer, Frames, Life, Request, Shape, runner_on
from workers.engine.graphs.capture import Capture, run_again
from workers.engine.runner import ModelRunner
from workers.ipc.framing import SUPERVISOR
from workers.ipc.messages import DropLink, encode_control

NUM_LIVES = max(30, settings().max_examples // 10)  # each is many steps
LINKS = (1, 2, 3)
HAIR = 1e-4
"""The tolerance for logits of about 1; products differ by some 1e-6."""
STOPS = tuple(range(3, 151, 12))
seen: Counter[str] = Counter()


@pytest.fixture(name="host", scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_tiny(write_tiny_model(folder), kv_tokens=256)


SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from((2, 30, 40, 40)),
    temperature=st.sampled_from((0.0, 1.1)),
    top_p=st.sampled_from((1.0, 1.0, 1.0, 0.9)),
    top_k=st.sampled_from((0, 0, 0, 20)),
    min_p=st.sampled_from((0.0, 0.0, 0.0, 0.01)),
    presence_penalty=st.sampled_from((0.0, 0.0, 0.0, 1.5)),
    frequency_penalty=st.sampled_from((0.0, 0.0, 0.0, 1.5)),
    repetition_penalty=st.sampled_from((1.0, 1.0, 1.0, 1.5)),
    stop_token_ids=st.sampled_from(((), (), (), STOPS)),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from((None, None, None, 2)),
)
REQUESTS = st.builds(
    Request,
    family=st.integers(0, 1),
    num_shared=st.sampled_from((0, 4, 9)),
    num_own=st.integers(1, 20),
    num_said=st.sampled_from((0, 0, 0, 3)),
    seed=st.integers(0, 99),
    sampling=SAMPLINGS,
)
TURNS = st.sampled_from((0, 0, 0, 1, 2, 4, 8, 13))
SHORTAGES = st.builds(
    Shortage, st.sampled_from(PLACES), after=st.integers(0, 40), lasts=st.sampled_from((1, 1, 1, 2))
)
LOST = st.builds(Shortage, st.just(FETCH), after=st.integers(0, 40), lasts=st.just(1))


class Company(NamedTuple):
    """Requests by turn and link, and what happens to them; a link that is dropped stays away."""

    requests: list[tuple[int, int, Request]]
    aborts: list[tuple[int, int]]
    drops: list[tuple[int, int]]

    def frames(self) -> list[Frames]:
        """The frames of each turn."""
        turns: defaultdict[int, Frames] = defaultdict(list)
        for number, (turn, link, request) in enumerate(self.requests):
            turns[turn].append((link, wire.encode(request.submit(number))))
        for turn, number in self.aborts:
            link = self.requests[number % len(self.requests)][1]
            name = _name(number % len(self.requests))
            turns[turn].append((link, wire.encode(Abort(name, 1))))
        for turn, link in self.drops:
            turns[turn].append((SUPERVISOR, encode_control(DropLink(link))))
        return [turns[turn] for turn in range(max(turns) + 1)]


COMPANIES = st.builds(
    Company,
    requests=st.lists(st.tuples(TURNS, st.sampled_from(LINKS), REQUESTS), min_size=5, max_size=8),
    aborts=st.lists(st.tuples(TURNS, st.integers(0, 7)), max_size=2),
    drops=st.lists(st.tuples(TURNS, st.sampled_from(LINKS)), max_size=1),
)
SHAPES = st.builds(
    Shape,
    num_blocks=st.sampled_from((12, 14, 16, 18)),
    max_seqs=st.integers(3, 5),
    token_budget=st.sampled_from((3, 7, 25, 60)),
)


def _name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def _alone(host: ModelRunner, num_blocks: int, submit: Submit) -> Answer:
    """What the same request is answered in the same window, on the host, with memory for all."""
    shape = Shape(num_blocks, max_seqs=1, token_budget=num_blocks * BLOCK)
    life = Life(runner_on(host, shape, card=False), ScarceMemory(()))
    life.live([[(1, wire.encode(submit))]])
    return life.answers[submit.request_id]


def _hangs_by_a_hair(host: ModelRunner, num_blocks: int, submit: Submit, ids: list[int]) -> bool:
    """Whether the first of `ids` come out otherwise for logits that are a hair's breadth off: how
    many rows a product has changes its last bits, which is nobody's fault.
    """
    logits = host.model.logits
    noise = torch.Generator().manual_seed(0)

    def blurred(hidden: Tensor) -> Tensor:
        exact = logits(hidden)
        return exact + HAIR * torch.randn(exact.shape, generator=noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.model, "logits", blurred)
        found = [_alone(host, num_blocks, submit).ids for _ in range(16)]
    return any(answer[: len(ids)] != ids for answer in found)


def _check_tokens(host: ModelRunner, num_blocks: int, submit: Submit, answer: Answer) -> None:
    """Check the tokens: a sequence that was cut off got the beginning of its answer."""
    if not answer.is_whole:
        # No more than there is to compare.
        most = count_tokens(submit.output_ids) + len(answer.ids)
        sampling = replace(submit.sampling, max_tokens=most)
        submit = replace(submit, sampling=sampling)
    alone = _alone(host, num_blocks, submit)
    wanted = alone.ids if answer.is_whole else alone.ids[: len(answer.ids)]
    if answer.ids != wanted:
        pairs = enumerate(zip_longest(answer.ids, wanted))
        first = next(index for index, (own, other) in pairs if own != other)
        is_nearly_equal = _hangs_by_a_hair(host, num_blocks, submit, wanted[: first + 1])
        assert is_nearly_equal, f"was told {answer.ids}, alone {wanted}"
        seen["nearly equal"] += 1
        return
    for own, other in zip(answer.logprobs, alone.logprobs, strict=False):
        values, others = [value for _, value in own.top], [value for _, value in other.top]
        assert (own.logprob, *values) == pytest.approx((other.logprob, *others), abs=10 * HAIR)


def _check_ends(life: Life, company: Company) -> None:
    """Every sequence whose gateway is there gets its end. An error is one of memory, in a step of
    that sequence, and only where no smaller step would have fitted.
    """
    num_errors = 0
    for number, (turn, link, _) in enumerate(company.requests):
        answer = life.answers[_name(number)]
        is_gone = any(at >= turn and dropped == link for at, dropped in company.drops)
        assert is_gone or answer.is_refused or answer.end is not None
        if answer.end is not None and answer.end.reason == "error":
            assert "out of memory" in answer.end.detail
            assert _name(number) in life.watched.short
            num_errors += 1
    assert num_errors <= life.watched.num_owed


@given(
    shape=SHAPES,
    company=COMPANIES,
    shortages=st.lists(SHORTAGES, max_size=6),
    lost=st.lists(LOST, max_size=1),
    capture=st.sampled_from((None, run_again)),
    turn_s=st.sampled_from((0.0, 1.0)),
)
@settings(max_examples=NUM_LIVES)
def _lives(
    host: ModelRunner,
    shape: Shape,
    company: Company,
    shortages: list[Shortage],
    lost: list[Shortage],
    capture: Capture | None,
    turn_s: float,
) -> None:
    """One step ahead of the host, with graphs that are captured between steps or without any."""
    memory = ScarceMemory(shortages + lost)
    life = Life(runner_on(host, shape, card=True, capture=capture), memory, turn_s)
    with pytest.MonkeyPatch.context() as patch:
        memory.limit(host.model, patch)
        life.live(company.frames())
    life.check_left()
    _check_ends(life, company)
    for number, (_, _, request) in enumerate(company.requests):
        answer = life.answers[_name(number)]
        if not answer.is_refused and (answer.ids or answer.is_whole):
            _check_tokens(host, shape.num_blocks, request.submit(number), answer)
    seen["struck"] += len(memory.struck)
    seen["preempted"] += life.scheduler.load(1, 0.0, 0.0).preemptions
    seen["strays"] += life.watched.num_strays
    seen["whole"] += sum(answer.is_whole for answer in life.answers.values())


def test_memory_that_runs_out_costs_nobody_else_a_token(host: ModelRunner) -> None:
    """Memory that runs out costs no other sequence a token, also where steps are planned ahead,
    sequences preempted and graphs captured.
    """
    seen.clear()
    _lives(host)
    # A fifth of what the poorest of eight runs saw.
    assert seen["struck"] > NUM_LIVES // 10
    assert seen["whole"] > NUM_LIVES // 2
    assert seen["preempted"] > 0
    assert seen["strays"] > NUM_LIVES // 10
    assert seen["nearly equal"] <= NUM_LIVES // 100
