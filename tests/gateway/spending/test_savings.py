"""What our own workers save: whose price counts, and which days."""

import time
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import (
    Config,
    FallbackConfig,
    ModelConfig,
    PriceConfig,
    ProviderConfig,
    TariffConfig,
)
from gateway.api import Usage
from gateway.spending.limits import Saving, day_of
from gateway.spending.prices import Price
from gateway.spending.savings import CloudPrice, LocalUse, cloud_prices
from gateway.store import LedgerEntry, LedgerStore
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import open_worker

PRICE = Price(input=3, cached_input=1, output=7)
"""Micro-units per million tokens."""
DEAR = CloudPrice("cloud", Price(input=3_000_000, cached_input=1_000_000, output=7_000_000))
"""3, 1 and 7 micro-units a token."""
DAY = "2026-11-23"


def provider(price: PriceConfig | None = None, **models: TariffConfig) -> ProviderConfig:
    return ProviderConfig(base_url="http://127.0.0.1:1/v1", price=price, models=models)


def model(name: str, *targets: tuple[str, str]) -> ModelConfig:
    return ModelConfig(
        name=name,
        fallback=tuple(FallbackConfig(provider=where, model=what) for where, what in targets),
    )


def use(*counted: tuple[str, str, Usage]) -> LocalUse:
    local = LocalUse({"m": DEAR})
    for day, name, usage in counted:
        local.add(day, name, usage)
    return local


def test_the_first_provider_with_a_price_counts() -> None:
    """The first provider with a price counts, by its price for that model if it has one; a model
    without any price is missing.
    """
    config = Config(
        models=(
            model("a", ("free", "x"), ("cloud", "x"), ("other", "x")),
            model("b", ("cloud", "big")),
            model("c", ("free", "x")),
            model("d"),
        ),
        providers={
            "free": provider(),
            "cloud": provider(
                PriceConfig(input=1, output=2),
                big=TariffConfig(price=PriceConfig(input=5, output=9, cached_input=4)),
            ),
            "other": provider(PriceConfig(input=100, output=100)),
        },
    )
    prices = cloud_prices(config)
    assert prices.keys() == {"a", "b"}
    assert prices["a"] == CloudPrice("cloud", Price(1_000_000, 1_000_000, 2_000_000))
    assert prices["b"] == CloudPrice("cloud", Price(5_000_000, 4_000_000, 9_000_000))


def test_cached_tokens_are_saved_at_their_own_price() -> None:
    """100 prompt tokens, 60 of them cached, and 10 of output: 40 * 3 + 60 * 1 + 10 * 7."""
    (saving,) = use((DAY, "m", Usage(100, 60, 10))).savings(DAY)
    assert saving == Saving("m", "cloud", 100, 60, 10, month=250, day=250)


def test_yesterday_counts_for_the_month_only_and_last_month_not_at_all() -> None:
    """Yesterday counts for the month only, and last month not at all, also when nothing was
    computed since.
    """
    local = use(
        ("2026-10-31", "m", Usage(7, 0, 7)),
        ("2026-11-01", "m", Usage(10, 0, 0)),
        (DAY, "m", Usage(1, 0, 0)),
    )
    (saving,) = local.savings(DAY)
    assert (saving.prompt_tokens, saving.month, saving.day) == (11, 33, 3)
    (tomorrow,) = local.savings("2026-11-24")
    assert (tomorrow.month, tomorrow.day) == (33, 0)
    assert local.savings("2026-12-01") == ()


def test_a_model_without_a_price_shows_its_tokens() -> None:
    """A reload that brings a price tells the whole month by it."""
    local = use((DAY, "odd", Usage(5, 1, 2)))
    assert local.savings(DAY) == (Saving("odd", "", 5, 1, 2, month=None, day=None),)
    local.prices = {"odd": DEAR}
    (saving,) = local.savings(DAY)
    assert (saving.provider, saving.month) == ("cloud", 12 + 1 + 14)


def test_a_cost_is_rounded_once_not_for_each_request() -> None:
    """A thousand requests of a fraction of a micro-unit each."""
    local = LocalUse({"m": CloudPrice("cloud", PRICE)})
    for _ in range(1000):
        local.add(DAY, "m", Usage(1000, 0, 0))
    (saving,) = local.savings(DAY)
    assert saving.month == 3


days = st.sampled_from(("2026-10-30", "2026-11-01", "2026-11-02", "2026-11-23", "2026-12-01"))
usages = st.builds(Usage, st.integers(0, 9), st.integers(0, 3), st.integers(0, 9))


@given(
    counted=st.lists(st.tuples(days, st.sampled_from(("m", "n")), usages), max_size=12),
    day=days,
)
def test_it_is_the_sum_of_the_month(counted: list[tuple[str, str, Usage]], day: str) -> None:
    """The sum is that of the month, in whatever order days come, as long as the month asked for is
    the newest.
    """
    newest = max([at[:7] for at, _, _ in counted], default="")
    local = use(*counted)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for at, name, usage in counted:
        if at[:7] == day[:7]:
            for place, count in enumerate(
                (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            ):
                sums[name][place] += count
    shown = {
        one.model: [one.prompt_tokens, one.cached_tokens, one.completion_tokens]
        for one in local.savings(day)
    }
    if day[:7] >= newest:
        assert shown == sums
    assert len(local._days) <= 2 * 5


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_gateway_counts_what_its_workers_computed(
    tmp_path: Path, is_restarted: bool
) -> None:
    """A gateway counts what its workers computed, also what the ledger has of this month from
    before its start, and not what providers did.
    """
    path = tmp_path / "ledger.sqlite"
    day = day_of(time.time())
    before = Usage(1000, 0, 1000) if is_restarted else Usage(0, 0, 0)
    if is_restarted:
        with_ledger(path, day, before)
    cloud = {"cloud": provider(PriceConfig(input=1.0, output=1.0))}
    models = [model("alpha", ("cloud", "big"))]
    async with (
        open_gateway(models=models, providers=cloud, ledger=path) as gateway,
        open_worker(gateway.address),
    ):
        await gateway.wait_local()
        usage = (await gateway.ask()).usage
        await wait_until(lambda: gateway.services.spending.figures().savings != ())
        (saving,) = gateway.services.spending.figures().savings
    assert (saving.model, saving.provider) == ("alpha", "cloud")
    assert saving.prompt_tokens == before.prompt_tokens + usage.prompt_tokens
    assert saving.completion_tokens == before.completion_tokens + usage.completion_tokens
    assert saving.month == saving.prompt_tokens + saving.completion_tokens


def with_ledger(path: Path, day: str, usage: Usage) -> None:
    """A ledger of an earlier process: our own worker's answer, and a provider's."""
    store = LedgerStore(path, "USD")
    counts = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    ours = LedgerEntry(day, "", "alpha", "", True, True, 1, *counts, 0)
    theirs = LedgerEntry(day, "", "alpha", "cloud", True, True, 1, *counts, 5)
    store.write([], [], [ours, theirs])
    store.close()
