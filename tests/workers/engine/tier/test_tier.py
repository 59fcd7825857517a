"""The host tier of an engine: with it and without, every token is the same."""

import os
import random
from pathlib import Path

import pytest
import torch

from benchmarks.drive import Drive
from protocol.sampling import SamplingParams
from tests.fakes.host_tiers import tier_for
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.step_cases import BLOCK, as_on_card
from workers.engine.graphs.capture import Capture, CudaCapture, run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.engine.step.steps import EngineSteps
from workers.scheduler import SavePolicy
from workers.scheduler.tier import Copy, EntryKind, Transfer

ON_CARD = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
FINE = SavePolicy(grain=BLOCK, every=2 * BLOCK, least=BLOCK, along=BLOCK)
NUM_PAGES = 150


def _host(tmp_path: Path, family: str, on: str) -> ModelRunner:
    return _load(write_family(tmp_path, family), on)


def _load(model: Path, on: str) -> ModelRunner:
    device = "cuda" if on == "cuda" else "cpu"
    sizes = {"kv_tokens": 1024, "block_size": BLOCK, "token_budget": 1024, "snapshots": 6}
    return load_tiny(model, device=device, dtype="float32", **sizes)


def _runner(host: ModelRunner, on: str) -> ModelRunner:
    """A runner whose cache nobody has written."""
    cache = as_on_card(host).cache
    steps: EngineSteps = HostSteps(host.model, cache, host.facts)
    if on != "cpu":
        capture: Capture = CudaCapture() if on == "cuda" else run_again
        steps = DeviceSteps(host.model, cache, host.facts, capture)
        while steps.prepare(pending_only=False):
            pass
    return ModelRunner(host.model, cache, host.facts, host.model_dir, steps)


def _drive(runner: ModelRunner, on: str) -> Drive:
    return Drive(
        runner,
        token_budget=64,
        max_seqs=3,
        num_blocks=16,
        looks_ahead=on != "cpu",
        save_policy=FINE,
    )


def _prompts(seed: int) -> list[list[int]]:
    """Three conversations whose turns take turns, on a card that holds one and a half."""
    rng = random.Random(seed)
    told: list[list[int]] = [[rng.randrange(2, 150) for _ in range(100)] for _ in range(3)]
    turns = []
    for _ in range(3):
        for one in told:
            one += [rng.randrange(2, 150) for _ in range(rng.randrange(5, 25))]
            turns.append(list(one))
    return turns


def _ask(
    drive: Drive, prompts: list[list[int]], sampling: SamplingParams = GREEDY
) -> tuple[list[list[int]], int]:
    """The answers, one prompt after the other, and how many tokens were found."""
    for prompt in prompts:
        drive.submit(prompt, sampling)
        drive.finish()
    answers = list(drive.answers.values())
    return [one.outputs for one in answers], sum([one.cached_tokens for one in answers])


@pytest.mark.parametrize("on", ["cpu", "like a card", ON_CARD])
@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_what_comes_back_from_the_host_says_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, on: str
) -> None:
    """Prompts find what the card has no room for, and the next engine finds it too."""
    host, prompts = _host(tmp_path, family, on), _prompts(1)
    cold, few = _ask(_drive(_runner(host, on), on), prompts)
    fd = os.memfd_create("herma-cache")
    request.addfinalizer(lambda: os.close(fd))
    first = _runner(host, on)
    request.addfinalizer(tier_for(first, NUM_PAGES, fd).close)
    warm, many = _ask(drive := _drive(first, on), prompts)
    assert warm == cold
    assert many > few + 5 * 80
    assert drive.tier is not None
    assert drive.tier.num_loaded > 20
    again = _runner(host, on)
    tier = tier_for(again, NUM_PAGES, fd)
    request.addfinalizer(tier.close)
    drive = _drive(again, on)
    assert drive.tier is not None
    assert drive.tier.num_recovered > 20
    tier.region.wait_opened()
    outputs, found = _ask(drive, prompts[-3:])
    assert outputs == cold[-3:]
    assert found >= 3 * 96


@pytest.mark.parametrize("on", ["cpu", ON_CARD])
@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_a_page_brings_the_same_bits_back(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, on: str
) -> None:
    """A page brings the same bits back, to another block, and to another slot; the checksums agree
    on every device.
    """
    runner = _runner(_host(tmp_path, family, on), on)
    tier = tier_for(runner, 12)
    request.addfinalizer(tier.close)
    tier.host_tier(0.0)
    memory = runner.cache.memory
    memory.copy_(torch.randn(memory.shape, generator=torch.Generator().manual_seed(3)))
    kept = runner.kept
    pages = tuple(range(4, 4 + tier.room.state_pages))
    copies = [Copy(3, (2,)), Copy(5, (0,))]
    if kept.prefixes is not None:
        kept.prefixes.matrices.normal_()
        kept.prefixes.tails.normal_()
    sums = [_copied(runner, Transfer(1, False, tuple(copies)))]
    if kept.prefixes is not None:
        sums.append(_copied(runner, Transfer(2, False, (Copy(1, pages, is_state=True),))))
    before = memory.clone()
    memory[:, :, 7:9].zero_()
    back = [_copied(runner, Transfer(3, True, (Copy(7, (2,)), Copy(8, (0,)))))]
    assert torch.equal(memory[:, :, 7], before[:, :, 3])
    assert torch.equal(memory[:, :, 8], before[:, :, 5])
    if kept.prefixes is not None:
        back.append(_copied(runner, Transfer(4, True, (Copy(2, pages, is_state=True),))))
        for part in (kept.prefixes.matrices, kept.prefixes.tails):
            assert torch.equal(part[2], part[1])
    assert back == sums
    words = tier.region.pages[2][: runner.cache.num_bytes() // memory.shape[2]]
    flat = before[:, :, 3].cpu().reshape(-1).view(torch.uint8)
    assert torch.equal(words, flat)


def _copied(runner: ModelRunner, transfer: Transfer) -> tuple[tuple[int, ...], ...]:
    assert runner.tier is not None
    runner.tier.copies.begin(transfer)
    while not (done := runner.tier.copies.take_done()):
        pass
    (one,) = done
    assert one.number == transfer.number
    return one.checksums


def test_a_flipped_bit_is_never_used(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The prompt is computed from there on, and the answer is right."""
    host, (prompt, *others) = _host(tmp_path, "qwen2", "cpu"), _prompts(2)[:3]
    ((expected,), _) = _ask(_drive(_runner(host, "cpu"), "cpu"), [prompt])
    runner = _runner(host, "cpu")
    tier = tier_for(runner, NUM_PAGES)
    request.addfinalizer(tier.close)
    drive = _drive(runner, "cpu")
    _ask(drive, [prompt, *others])
    assert drive.tier is not None
    entries = [drive.tier.pool.get(name) for name in drive.tier.pool.names]
    (page,) = next(one.pages for one in entries if one is not None and one.depth == 3)
    third = [one for one in entries if one is not None and one.depth == 3]
    for one in third:
        tier.region.pages[one.pages[0], 100] ^= 1
    number = drive.submit(prompt, GREEDY)
    drive.finish()
    assert drive.answers[number].outputs == expected
    assert drive.answers[number].cached_tokens == 2 * BLOCK
    assert drive.tier.num_spoilt == 1
    assert page in [one.pages[0] for one in third if one.pages] or drive.tier.pool.num_free
    drive.check()


def test_private_prefixes_never_leave_the_card(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Private prefixes never leave the card, from the cache or by preemption: no page is
    written.
    """
    runner = _runner(_host(tmp_path, "qwen3_5", "cpu"), "cpu")
    tier = tier_for(runner, NUM_PAGES)
    request.addfinalizer(tier.close)
    drive = Drive(runner, token_budget=64, max_seqs=4, num_blocks=20, save_policy=FINE)
    for prompt in _prompts(3)[:6]:
        drive.submit(prompt, SamplingParams(max_tokens=30, ignore_eos=True), salt=b"own")
    drive.finish()
    assert drive.num_preemptions > 0
    assert drive.tier is not None
    assert drive.tier.num_stored == 0
    assert not tier.region.pages.any()


@pytest.mark.parametrize("change", ["identity", "pages"])
def test_a_foreign_layout_is_never_used(
    tmp_path: Path, request: pytest.FixtureRequest, change: str
) -> None:
    """A region of another model, dtype or shape (all in the identity), or of another size, is never
    used.
    """
    host = _host(tmp_path, "qwen2", "cpu")
    fd = os.memfd_create("herma-cache")
    request.addfinalizer(lambda: os.close(fd))
    first = _runner(host, "cpu")
    request.addfinalizer(tier_for(first, NUM_PAGES, fd).close)
    _ask(_drive(first, "cpu"), _prompts(1)[:3])
    again = _runner(host, "cpu")
    if change == "identity":
        tier = tier_for(again, NUM_PAGES, fd, model=b"another")
    else:
        tier = tier_for(again, NUM_PAGES - 1, fd)
    request.addfinalizer(tier.close)
    books = tier.host_tier(0.0)
    assert books.num_recovered == 0
    assert books.pool.num_used == 0


def test_pages_of_an_earlier_engine_open_while_the_next_one_starts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Pages of an earlier engine open while the next one starts, before the loop asks for the
    books: the first requests behind a restart want these pages.
    """
    host = _host(tmp_path, "qwen2", "cpu")
    fd = os.memfd_create("herma-cache")
    request.addfinalizer(lambda: os.close(fd))
    first = _runner(host, "cpu")
    fresh = tier_for(first, NUM_PAGES, fd)
    request.addfinalizer(fresh.close)
    assert fresh.copies.take_opened() == []
    _ask(_drive(first, "cpu"), _prompts(1)[:3])
    again = tier_for(_runner(host, "cpu"), NUM_PAGES, fd)
    request.addfinalizer(again.close)
    opened = again.copies.take_opened()
    assert [page for pages in opened for page in pages] == list(range(NUM_PAGES))
    books = again.host_tier(0.0)
    assert books.num_recovered > 0
    assert again.copies.take_opened() == []


def test_the_books_are_cleared_on_both_tiers(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    runner = _runner(_host(tmp_path, "qwen3_5", "cpu"), "cpu")
    request.addfinalizer(tier_for(runner, NUM_PAGES).close)
    drive = _drive(runner, "cpu")
    prompts = _prompts(1)[:3]
    _ask(drive, prompts)
    assert drive.tier is not None
    assert any(name.kind is EntryKind.STATE for name in drive.tier.pool.names)
    assert drive._scheduler.blocks.clear() > 10
    assert drive.tier.pool.names == []
    snapshot = drive._scheduler.snapshot()
    assert (snapshot.digests, snapshot.states) == (b"", b"")
    drive.check()
    number = drive.submit(prompts[0], GREEDY)
    drive.finish()
    assert drive.answers[number].cached_tokens == 0
