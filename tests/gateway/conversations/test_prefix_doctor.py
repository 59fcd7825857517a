"""What breaks a prefix is named: planted breakers, and clean traffic without any."""

import random
import uuid
from array import array
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest

from gateway.api import Message
from gateway.api.request import ToolCall
from gateway.conversations import (
    KnownConversation,
    PrefixDoctor,
    PrefixFinding,
    SentPrompt,
    chains,
    tools_of,
)
from gateway.conversations.prefix_doctor import first_difference
from gateway.prompt import ModelText, decode_raw
from protocol.tokens import pack_tokens
from tests.fakes.text_files import CHAT_TEMPLATE, make_text_files

NOW = datetime(2026, 11, 28, 10, 0, tzinfo=UTC)
RULES = "\n".join(
    f"Rule {at}: keep the files of part {at} as they are, and say why." for at in range(20)
)


def conversation(name: str = "one") -> KnownConversation:
    return KnownConversation(name, "k", "agent", "alpha", "prompt", "", 0.0, 0.0, ("k", name))


def _hashes(messages: list[Message]) -> "array[int]":
    return array("q", map(hash, map(chains.said, messages)))


class Turn(NamedTuple):
    """What a client sends in its turn `number`, from 0."""

    system: str
    said: list[Message]
    tools: list[dict[str, Any]]


def tool(name: str, text: str = "It does what it says.") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": parameters},
    }


TOOLS = [tool(name) for name in ("read_file", "write_file", "bash", "search", "fetch")]


def work(number: int, who: str = "") -> list[Message]:
    """`number` rounds of the agent `who`, behind what it was asked."""
    said = [Message("user", "Mend the build of the project in /src, then write what you did.")]
    for at in range(number):
        call = ToolCall(f"call_{who}{at}", "read_file", f'{{"path": "f{at}.py"}}')
        said.append(Message("assistant", f"I read file {at}{who}.", tool_calls=(call,)))
        text = f"def f{who}{at}():\n    return {at}\n" * 6
        said.append(Message("tool", text, tool_call_id=call.id))
    return said


def clean(number: int) -> Turn:
    return Turn(f"You are an agent.\n{RULES}", work(number), TOOLS)


def in_system(line: Callable[[int], str], number: int) -> Turn:
    turn = clean(number)
    return turn._replace(system=f"You are an agent.\n{line(number)}\n{RULES}")


def reordered(number: int) -> Turn:
    tools = TOOLS.copy()
    random.Random(number).shuffle(tools)
    return clean(number)._replace(tools=tools)


def more_tools(number: int) -> Turn:
    return clean(number)._replace(tools=[*[tool(f"mcp_{at}") for at in range(number)], *TOOLS])


def timed_tool(number: int) -> Turn:
    text = f"Runs a command. The time is 10:0{number}:30."
    return clean(number)._replace(tools=[tool("bash", text), *TOOLS[:2]])


def summary(number: int) -> Turn:
    said = work(6 + number)
    told = f"{number + 5} files were read, {'all ' * number}is well."
    text = f"[Summary of the conversation so far: {told}]"
    return clean(number)._replace(said=[Message("user", text), *said[2 * number + 3 :]])


def sliding(number: int) -> Turn:
    said = work(6 + number)
    return clean(number)._replace(said=[said[0], *said[1 + 2 * number :]])


def mark(number: int) -> Turn:
    said = work(number + 1)
    last = said[-1]
    text = f"{last.content}\n<system-reminder>The list of things to do is empty.</system-reminder>"
    said[-1] = Message(last.role, text, tool_call_id=last.tool_call_id)
    return clean(number)._replace(said=said)


def cleared(number: int) -> Turn:
    said = work(number + 4)
    for at in range(number):
        old = said[2 * at + 2]
        said[2 * at + 2] = Message("tool", "[old result]", tool_call_id=old.tool_call_id)
    return clean(number)._replace(said=said)


BREAKERS: dict[str, tuple[Callable[[int], Turn], str, str]] = {
    "clock": (
        partial(in_system, lambda n: f"Current time: 2026-11-28T10:0{n}:12Z"),
        "time stamp",
        "system",
    ),
    "date in words": (
        partial(in_system, lambda n: f"Today is {NOW + timedelta(days=n):%A, %B %d, %Y}."),
        "time stamp",
        "system",
    ),
    "unix time": (
        partial(in_system, lambda n: f"now={1_795_437_000 + 7 * n}"),
        "time stamp",
        "system",
    ),
    "turn count": (partial(in_system, lambda n: f"This is turn {n} of 50."), "counter", "system"),
    "tokens left": (
        partial(in_system, lambda n: f"Tokens left: {200_000 - 1234 * n:,}"),
        "counter",
        "system",
    ),
    "billing": (
        partial(
            in_system,
            lambda n: f"x-anthropic-billing-header: cc_version=2.1.1; cch={n + 40:05x};",
        ),
        "billing line",
        "system",
    ),
    "request id": (
        partial(
            in_system, lambda n: f"Request: {uuid.UUID(int=random.Random(n).getrandbits(128))}"
        ),
        "changing id",
        "system",
    ),
    "order of tools": (reordered, "reordered tools", "tools"),
    "tools of servers": (more_tools, "changed tools", "tools"),
    "clock of a tool": (timed_tool, "time stamp", "tools"),
    "summary": (summary, "edited summary", "messages[1] (user)"),
    "window": (sliding, "dropped history", "messages[2] (assistant)"),
    "reminder": (mark, "rolling mark", "messages[3] (tool)"),
    "old results": (cleared, "edited result", "messages[3] (tool)"),
}


def text_with(template: str = CHAT_TEMPLATE) -> ModelText:
    return ModelText(make_text_files(template=template))


class Examined:
    def __init__(self, text: ModelText) -> None:
        self._text = text
        self.doctor = PrefixDoctor()
        self.owner = conversation()

    def turn(self, turn: Turn, now: datetime = NOW) -> PrefixFinding | None:
        messages = [Message("system", turn.system), *turn.said]
        ids = pack_tokens(self._text.encode_chat(messages, turn.tools, {}, now))
        prompt = SentPrompt(ids, _hashes(messages), tools_of(turn.tools), 1)
        return self.doctor.note(self.owner, prompt, messages, partial(decode_raw, self._text))


@pytest.mark.parametrize("name", BREAKERS)
def test_a_planted_breaker_is_named_with_place_and_cost(name: str) -> None:
    make, kind, place = BREAKERS[name]
    examined = Examined(text_with())
    found = [examined.turn(make(number)) for number in range(1, 5)]
    assert found[0] is None
    for finding in found[1:]:
        assert finding is not None
        assert finding.kind == kind
        assert finding.place.partition("[")[0] == place.partition("[")[0]
        assert finding.lost_tokens > 30
        assert finding.length > 0


def test_the_template_is_named() -> None:
    """The template is named as the cause: here it drops what the assistant said before the last
    turn.
    """
    template = CHAT_TEMPLATE.replace(
        "{%- for message in messages %}",
        "{%- for message in messages %}"
        "{% if loop.index > 1 and loop.revindex > 6 %}(old){% endif %}",
        1,
    )
    assert template != CHAT_TEMPLATE
    examined = Examined(text_with(template))
    found = [examined.turn(clean(number)) for number in range(1, 8)]
    assert {one.kind for one in found if one is not None} == {"template"}


@pytest.mark.parametrize("seed", range(20))
def test_clean_traffic_has_no_finding(seed: int) -> None:
    """Turns, retries, side calls and subagents under the same name."""
    random_, examined = random.Random(seed), Examined(text_with())
    for number in range(8):
        assert examined.turn(clean(number)) is None
        if random_.random() < 0.4:
            assert examined.turn(clean(number)) is None
        if random_.random() < 0.5:
            title = Turn("Write a title of three words.", work(0), [])
            assert examined.turn(title) is None
        if random_.random() < 0.5:
            task = f"Look for the word {random_.getrandbits(40)} in the files, and report."
            rounds = [Message("user", task), *work(random_.randint(0, 3), task[18:28])[1:]]
            assert examined.turn(Turn(f"You are a helper.\n{RULES}", rounds, TOOLS[:2])) is None


def test_findings_are_counted_by_client() -> None:
    doctor = PrefixDoctor()
    for lost in (100, 300):
        doctor.count("openclaw", PrefixFinding("time stamp", "system", 40, 8, lost), 0.5)
    doctor.count("codex", PrefixFinding("edited result", "messages[7] (tool)", 900, 80, 150), 0.1)
    first, second = doctor.rows()
    assert (first.client, first.kind, first.times, first.lost_tokens) == (
        "openclaw",
        "time stamp",
        2,
        400,
    )
    assert (second.place, second.lost_s) == ("messages", 0.1)


def test_the_oldest_prompts_go_first() -> None:
    doctor = PrefixDoctor(max_bytes=100_000)
    owners = [conversation(str(number)) for number in range(50)]
    for number, owner in enumerate(owners):
        ids = pack_tokens(range(number, number + 1000))
        doctor.note(owner, SentPrompt(ids, _hashes([Message("user", "a")]), (), 0), (), str)
        doctor.make_room(lambda: owners)
        assert doctor.num_bytes <= 100_000
    kept = [bool(owner.prompts) for owner in owners]
    assert 10 < sum(kept) < 25
    assert kept == sorted(kept)
    for owner in owners:
        doctor.forget(owner)
    assert doctor.num_bytes == 0


@pytest.mark.parametrize("at", [0, 1, 2, 31, 32, 499, 500])
def test_the_first_difference_is_found(at: int) -> None:
    one = list(range(500))
    other = one[:at] + [9999] * (500 - at)
    assert first_difference(pack_tokens(one), pack_tokens(other)) == at
    assert first_difference(pack_tokens(one[:at]), pack_tokens(one)) == at


def test_prompts_to_different_models_are_not_compared() -> None:
    """Prompts to different models are not compared, because their ids mean different texts."""
    doctor, one = PrefixDoctor(), conversation()
    before = [Message("user", "hello")]
    after = [*before, Message("assistant", "yes?"), Message("user", "well")]
    ids, others = pack_tokens(range(500)), pack_tokens(range(500, 1000))
    first = SentPrompt(ids, _hashes(before), (), 0, "a")
    assert doctor.note(one, first, before, str) is None
    elsewhere = SentPrompt(others, _hashes(after), (), 0, "b")
    assert doctor.note(one, elsewhere, after, str) is None
    next_one = SentPrompt(others, _hashes(after), (), 0, "a")
    assert doctor.note(one, next_one, after, str) is not None
