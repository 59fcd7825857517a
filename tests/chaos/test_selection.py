"""A selection of what `make chaos` asks, each fault once, in half a minute. No time is judged."""

from pathlib import Path

import pytest
import trio

from tests.chaos.bad_clouds import run_bad_clouds
from tests.chaos.cloud_cover import run_cover
from tests.chaos.faults import FAULTS
from tests.chaos.fleet import open_fleet
from tests.chaos.histories import run_history
from tests.chaos.leaks import cancel_upstream_streams, disconnect_clients
from tests.chaos.pair_faults import PAIR_FAULTS
from tests.chaos.pair_story import run_pair
from tests.chaos.scenario import Scenario
from tests.chaos.traffic import CHAT, MESSAGES, RESPONSES, learn, make_prompts

SEED = 7
PROMPTS = make_prompts(12, SEED, (50, 130), (CHAT, RESPONSES, MESSAGES))
PEACE_S = 0.5


@pytest.mark.parametrize(
    ("num_workers", "names"),
    [
        (2, ("exit-127", "cut-link")),
        (1, ("kill-supervisor",)),
        pytest.param(2, ("out-of-memory",), marks=pytest.mark.slow),
    ],
)
async def test_streams_survive_what_happens_to_a_worker(
    tmp_path: Path, num_workers: int, names: tuple[str, ...]
) -> None:
    """Sixteen streaming clients see no error and no wrong byte."""
    with trio.fail_after(240):
        async with open_fleet(tmp_path / "f", num_workers) as fleet:
            expected = await learn(fleet.herma.base_url, PROMPTS, concurrency=12)
            for name in names:
                scenario = Scenario(fleet, FAULTS[name], PROMPTS, expected, SEED, peace_s=PEACE_S)
                outcome = await scenario.run(1)
                assert outcome.problems == [], name
                assert outcome.injections[0].hit, name
                assert outcome.num_answers >= 16, name


@pytest.mark.slow
async def test_a_provider_covers_the_loss_of_all_workers(tmp_path: Path) -> None:
    """A provider covers the loss of all workers, and is left again; the open streams wait for their
    worker. In `make test` the form with one worker is `tests/e2e/test_failover.py`.
    """
    with trio.fail_after(120):
        covered = await run_cover(tmp_path / "f", PROMPTS, {}, 1, peace_s=0.0)
    assert covered.problems == []
    assert covered.num_answers == 4


async def test_bad_providers_cost_one_clear_error_at_most(tmp_path: Path) -> None:
    """Bad providers cost one clear error at most, which shows no addresses and keys."""
    with trio.fail_after(120):
        num_answers, problems = await run_bad_clouds(tmp_path / "f")
    late = [problem for problem in problems if ": took " in problem]
    assert [problem for problem in problems if problem not in late] == []
    assert num_answers == 38


async def test_cancelled_upstream_streams_lose_no_slot() -> None:
    """A small version of a thousand."""
    flood = await cancel_upstream_streams(150, SEED)
    assert flood.problems == []
    assert flood.num_cut > 0


async def test_clients_that_leave_cost_no_block_and_no_descriptor(tmp_path: Path) -> None:
    """A small version of ten thousand, against real processes."""
    with trio.fail_after(120):
        flood = await disconnect_clients(tmp_path / "f", 60, SEED)
    assert flood.problems == []
    assert flood.num_cut > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_models_of_one_card_behind_a_provider(tmp_path: Path, seed: int) -> None:
    """Faults overlap. No client notices, and each model is answered by its worker in the end."""
    with trio.fail_after(600):
        row = await run_history(tmp_path / "f", 10, seed)
    assert row["problems"] == []
    assert row["answers"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator object ByteStream:"
    "pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("fault", ["gateway-stopped", "ledger-gone"])
async def test_two_gateways_share_what_one_loses(tmp_path: Path, fault: str) -> None:
    """Each is hurt once: no client of the other notices, and no more is paid than limits allow."""
    with trio.fail_after(240):
        row = await run_pair(tmp_path, PAIR_FAULTS[fault], PROMPTS, {}, 2, SEED, peace_s=PEACE_S)
    assert row["problems"] == []
    assert row["cut"] > 0
