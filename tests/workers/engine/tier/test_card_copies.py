"""Copies as on a card: runs of pages, and the same bits and checksums as on a CPU."""

import random
from pathlib import Path

import pytest
import torch

from tests.fakes.card_streams import pretend
from tests.fakes.host_tiers import tier_for
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from workers.engine.tier.card_copies import CardCopies, PageRun, runs_of
from workers.engine.tier.copies import PageCopies
from workers.scheduler.tier import Copy, Transfer


def test_runs_of_pages() -> None:
    """Neighbours go together, and never over the border of two registrations."""
    assert runs_of([3, 4, 5, 7, 9, 10], 100) == [
        PageRun(0, 3, 3), PageRun(3, 7, 1), PageRun(4, 9, 2),
    ]  # fmt: skip
    assert runs_of([3, 4, 5, 6], 5) == [PageRun(0, 3, 2), PageRun(2, 5, 2)]
    assert runs_of([], 5) == []


@pytest.mark.parametrize("seed", range(20))
def test_runs_take_every_page_once(seed: int) -> None:
    rng = random.Random(seed)
    pages = sorted(rng.sample(range(60), rng.randrange(1, 40)))
    piece = rng.randrange(1, 20)
    runs = runs_of(pages, piece)
    taken = [run.page + i for run in runs for i in range(run.num_pages)]
    rows = [run.row + i for run in runs for i in range(run.num_pages)]
    assert (taken, rows) == (pages, list(range(len(pages))))
    for run in runs:
        assert run.page // piece == (run.page + run.num_pages - 1) // piece


@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_a_card_copies_what_a_cpu_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, family: str
) -> None:
    """The pages and the checksums of a store are equal, and a load brings every block and state
    to its place, whatever the order of the pages.
    """
    sizes = {"kv_tokens": 512, "block_size": 16, "snapshots": 6}
    runner = load_tiny(write_family(tmp_path, family), device="cpu", dtype="float32", **sizes)
    tier = tier_for(runner, 30)
    request.addfinalizer(tier.close)
    pretend(monkeypatch)
    words = tier.swapper._words
    card = CardCopies(tier.region, words, torch.device("cpu"))
    memory = runner.cache.memory
    memory.normal_(generator=torch.Generator().manual_seed(3))
    blocks = tuple([Copy(place, (page,)) for place, page in [(3, 7), (5, 6), (1, 12), (9, 5)]])
    stores = [Transfer(1, False, blocks)]
    loads = [Transfer(3, True, tuple([Copy(copy.place + 10, copy.pages) for copy in blocks]))]
    kept = runner.kept.prefixes
    if kept is not None:
        kept.matrices.normal_()
        kept.tails.normal_()
        state = tuple(range(14, 14 + words.state_pages))
        stores.append(Transfer(2, False, (Copy(1, state, is_state=True),)))
        loads = [Transfer(3, True, (*loads[0].copies, Copy(2, state, is_state=True)))]
    before, found = memory.clone(), []
    for copies in (tier.copies, card):
        tier.region.pages.zero_()
        sums = [_copied(copies, each) for each in stores]
        found.append((sums, tier.region.pages.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    (loaded,) = [_copied(card, each) for each in loads]
    assert loaded == tuple([one for sums in found[0][0] for one in sums])
    for copy in blocks:
        assert torch.equal(memory[:, :, copy.place + 10], before[:, :, copy.place])
    if kept is not None:
        assert torch.equal(kept.matrices[2], kept.matrices[1])
        assert torch.equal(kept.tails[2], kept.tails[1])


def _copied(copies: PageCopies, transfer: Transfer) -> tuple[tuple[int, ...], ...]:
    copies.begin(transfer)
    (done,) = copies.take_done()
    assert done.number == transfer.number
    return done.checksums
