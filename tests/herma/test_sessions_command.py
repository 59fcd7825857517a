"""`herma sessions` and `herma doctor --prefixes`, against a real gateway and as text."""

import argparse

import msgspec
import pytest

from gateway.conversations import ConversationList, ConversationRow, PrefixRow
from herma.commands.sessions import facts, table
from herma.prefixes import report
from herma.top import GatewayPage
from protocol.errors import HermaError
from tests.fakes.whole_gateway import whole_gateway


def row(**fields: object) -> ConversationRow:
    zeros: dict[str, object] = dict.fromkeys(ConversationRow.__struct_fields__, 0)
    zeros |= {"key": "k", "client": "codex", "model": "alpha", "source": "session-id"}
    zeros["parent"] = ""
    given = {**zeros, "name": "s1", "is_open": False, "last_error": "", "loop": "", **fields}
    return msgspec.convert(given, ConversationRow)


def test_the_table_has_a_line_for_each() -> None:
    rows = (
        row(turns=3, prompt_tokens=1000, cached_tokens=500, seen_at=40.0),
        row(name="s2\x1b[31m", parent="s1", loop="read: the same result 6 times", cost=1_230_000),
    )
    lines = [*table(ConversationList("EUR", 100.0, rows))]
    assert lines[0].startswith("conversation")
    assert "50 %" in lines[1]
    assert "1 min" in lines[1]
    assert "\x1b" not in lines[2]
    assert "1.2300 EUR" in lines[2]
    assert "loop: read" in lines[2]
    assert [*table(ConversationList("EUR", 0.0, ()))] == ["no conversation yet"]
    assert any("begun by" in line for line in facts(rows[1], ConversationList("EUR", 0.0, rows)))


def test_findings_come_with_a_remedy() -> None:
    rows = (
        PrefixRow("openclaw", "time stamp", "system", 4, 8, 90_000, 12.5),
        PrefixRow("codex", "template", "template", 1, 8, 100, 0.1),
    )
    lines = [*report(rows)]
    assert "90,000 tokens and 12.5 s" in lines[0]
    assert 'client = "openclaw", do = "move"' in lines[1]
    assert "[[repairs]]" not in lines[3]
    assert "nothing found" in next(report(()))


async def test_they_read_a_gateway() -> None:
    async with whole_gateway() as whole:
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        await whole.post("/v1/chat/completions", session_id="a b/c", **body)
        page = GatewayPage(whole.url, None)
        found, _ = await page.conversations("")
        assert [one.name for one in found.conversations] == ["a b/c"]
        found, _ = await page.conversations("a b/c")
        assert found.conversations[0].turns == 1
        with pytest.raises(HermaError, match="knows no conversation"):
            await page.conversations("nobody")
        prefixes, _ = await page.prefixes()
        assert prefixes.prefixes == ()
        page.close()


def test_a_gateway_that_is_not_there_is_named() -> None:
    from herma.commands.sessions import run

    given = argparse.Namespace(
        url="http://127.0.0.1:9", config=None, key_env=None, name=None, json=False
    )
    with pytest.raises(HermaError, match="no gateway answers"):
        run(given)
