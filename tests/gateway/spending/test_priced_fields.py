"""Fields by which a request may cost what no price of tokens covers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from config import (
    AllLimitsConfig,
    ConversationLimitsConfig,
    FallbackConfig,
    LimitsConfig,
    ParamsConfig,
    PriceConfig,
)
from gateway.api import ApiError, chat_request
from gateway.spending import Bill
from gateway.turn.caller import Caller
from tests.fakes.provider import FakeProvider
from tests.gateway.spending.test_spending import COST, COUNTED, open_shop, units

PAID: dict[str, dict[str, Any]] = {
    "models": {"models": ["openai/o9-pro"]},
    "plugins": {"plugins": [{"id": "web"}]},
    "web_search_options": {"web_search_options": {"search_context_size": "high"}},
    "service_tier": {"service_tier": "priority"},
    "best_of": {"best_of": 20},
    "tools[1]": {
        "tools": [
            {"type": "function", "function": {"name": "f"}},
            {"type": "openrouter:web_search"},
        ]
    },
}


@pytest.mark.parametrize("name", sorted(PAID))
async def test_what_no_price_of_tokens_covers_is_not_sent_under_a_limit(
    tmp_path: Path, name: str
) -> None:
    """A client could spend more than its limit by it. The error says what to leave out; without a
    limit it is sent, and so it is at a provider that costs nothing.
    """
    fake = FakeProvider(usage=COUNTED)
    limits = LimitsConfig(daily=units(100_000))
    async with open_shop(tmp_path, fake, limits=limits) as shop:
        asked = await shop.ask(**PAID[name])
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (400, "field_without_price")
        assert f"'{name}'" in asked.error.message
        assert not fake.requests
        assert (await shop.ask(service_tier="flex", best_of=1, models=[])).error is None
    for number, more in enumerate(
        ({}, {"limits": limits, "price": PriceConfig(input=0, output=0)})
    ):
        async with open_shop(tmp_path / str(number), FakeProvider(usage=COUNTED), **more) as shop:
            assert (await shop.ask(**PAID[name])).error is None


async def test_the_operators_own_fields_are_sent_under_a_limit(tmp_path: Path) -> None:
    """Fields that the operator sets are sent under a limit: the operator knows their cost."""
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake, limits=LimitsConfig(daily=units(100_000))) as shop:
        spending = shop.gateway.services.spending
        params = ParamsConfig(set={"service_tier": "priority"})
        target = FallbackConfig(provider="p0", model="m", params=params)
        body = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
        request = chat_request({**body, "service_tier": "priority"})
        bill = await spending.open_bill("alice", "alpha", target, request)
        assert isinstance(bill, Bill)
        bill.drop()
        other = FallbackConfig(provider="p0", model="m")
        assert isinstance(await spending.open_bill("alice", "alpha", other, request), ApiError)


async def test_a_limit_of_a_conversation_refuses_what_no_price_covers(tmp_path: Path) -> None:
    """A limit of a conversation refuses what no price covers, as a limit of a provider does."""
    fake = FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, fake) as shop:
        services = shop.gateway.services
        most = ConversationLimitsConfig(money=units(COST) * 20)
        limits = AllLimitsConfig(conversation=most)
        services.conversation_tracker.reconfigure(
            msgspec.structs.replace(services.config, limits=limits)
        )
        caller = Caller(key="alice", session="talk")
        asked = await shop.ask(caller, session_id="talk", max_tokens=10, service_tier="priority")
        assert asked.error is not None
        assert not fake.requests
