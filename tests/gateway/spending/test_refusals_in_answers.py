"""What is booked for refusals in answers or in bodies that say nothing, and for what a filter has
ended.
"""

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


LATE = {"message": "Slow down.", "code": 429}
HALF = {"index": 0, "message": {"role": "assistant", "content": "Half an"}, "finish_reason": "stop"}
BEGUN = b'data: {"choices":[{"index":0,"delta":{"content":"Half an"}}]}\n\n'


@pytest.mark.parametrize("code", [429, 400, "insufficient_quota"])
@pytest.mark.parametrize("form", ["answer", "events"])
async def test_an_error_behind_a_part_of_the_answer_is_no_refusal(
    tmp_path: Path, form: str, code: object
) -> None:
    """The provider has made a part of the answer, which it may charge."""
    error = {**LATE, "code": code}
    told = json.dumps({"choices": [HALF], "error": error}).encode()
    events = BEGUN + b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    fake, other = FakeProvider(), FakeProvider(usage=COUNTED)
    fake.whole = lambda *_: told if form == "answer" else events  # type: ignore[method-assign]
    async with open_shop(tmp_path, fake, other) as shop:
        asked = await shop.ask(stream=False)
        assert asked.started.served_by == "cloud:p1"
        row = await shop.row()
        assert (row.cost, row.unsettled) == (COST, 1)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"<html><body>Bad Request</body></html>", {"content-type": "text/html"}),
        (b"\x0b\x02\x80{}", {"content-encoding": "br"}),
        (b'{"error": {"mess', {"content-encoding": "gzip"}),
    ],
)
async def test_a_refusal_whose_body_says_nothing_is_free(
    tmp_path: Path, body: bytes, headers: dict[str, str], streamed: bool
) -> None:
    """Its status is known: a proxy's page, a coding that cannot be read, or another one."""
    fake = FakeProvider(status=400, error_body=body, headers=headers)
    async with open_shop(tmp_path, fake, FakeProvider(usage=COUNTED)) as shop:
        asked = await shop.ask(stream=streamed)
        assert asked.started.served_by == "cloud:p1"
        row = await shop.row()
        assert (row.cost, row.unsettled) == (COST, 0)


async def test_what_a_filter_ended_costs_what_was_counted(tmp_path: Path) -> None:
    """Also where another provider answers."""
    fakes = FakeProvider(usage=COUNTED, finish="content_filter"), FakeProvider(usage=COUNTED)
    async with open_shop(tmp_path, *fakes) as shop:
        asked = await shop.ask(stream=False)
        assert asked.started.served_by == "cloud:p1"
        row = await shop.row()
        assert (row.cost, row.unsettled) == (2 * COST, 0)
