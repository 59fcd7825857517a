"""What is booked for an answer with status 200 that is a refusal, or that a filter has ended."""

import json
from pathlib import Path

import pytest

from tests.fakes.provider import FakeProvider
from tests.gateway.spending.test_spending import COST, COUNTED, open_shop


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("code", "charged"),
    [(429, False), ("401", False), (400, False), ("insufficient_quota", False), (502, True)],
)
async def test_a_refusal_in_an_answer_is_free_too(
    tmp_path: Path, code: object, charged: bool, streamed: bool
) -> None:
    """Servers that have sent comments before say 200: one that is busy for an hour would spend the
    limit of the day.
    """
    told = json.dumps({"error": {"message": "No.", "code": code}}).encode()
    fake = FakeProvider()
    fake.events = lambda *_: [b": working\n\n", b"data: " + told + b"\n\n"]  # type: ignore[method-assign]
    fake.whole = lambda *_: told  # type: ignore[method-assign]
    async with open_shop(tmp_path, fake) as shop:
        await shop.ask(stream=streamed)
        assert len(fake.requests) == 1
        assert bool(await shop.rows()) == charged


async def test_what_a_filter_ended_costs_what_was_counted(tmp_path: Path) -> None:
    """Also where another provider answers."""
    fakes = FakeProvider(usage=COUNTED, finish="content_filter"), FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, *fakes) as shop:
        asked = await shop.ask(stream=False)
        assert asked.started.served_by == "cloud:p1"
        row = await shop.row()
        assert (row.cost, row.unsettled) == (2 * COST, 0)
