"""One training or test case, and the check of its answer.

Owns the form of a case and the check, which takes plain text and tool calls, so the evaluation
inside training and the one over HTTP share it. Must not know skills, tokens or models.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Message = dict[str, Any]
Tool = dict[str, Any]
Split = Literal["train", "eval"]
CheckKind = Literal["text", "contains", "tool", "ends"]

THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the tool `name`; `arguments` is None when they are not a JSON object."""

    name: str
    arguments: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """The expected answer.

    text: the answer is one of `texts`. contains: it holds all of `texts` and none of `absent`.
    tool: exactly `calls`, in any order. ends: any answer that ends by itself. Except for kind
    "tool", an answer that calls a tool is wrong.
    """

    kind: CheckKind
    texts: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A conversation that ends with the assistant's message to be learned.

    An assistant's `content` may begin with "<think>\n…\n</think>"; a text follows after "\n\n", a
    call directly. `tool_calls` are those of the OpenAI API, with `arguments` as an object. Earlier
    assistant messages are history. The chat template drops their reasoning: a message whose
    `content` has reasoning must not be trained on, or the model would learn to answer without it.
    """

    skill: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    check: ExpectedAnswer

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages without the answer."""
        return self.messages[:-1]


@dataclass(frozen=True, slots=True)
class ExampleVerdict:
    """`valid_tool`: None if no call was tried; `right_tool`: None if none was expected."""

    ok: bool
    valid_tool: bool | None
    right_tool: bool | None


def judge(
    check: ExpectedAnswer, answer_text: str, tool_calls: Sequence[Mapping[str, Any]] = ()
) -> ExampleVerdict:
    """Judge the answer of a server.

    `tool_calls` are those of the OpenAI API or bare {"name", "arguments"}; arguments may be JSON
    text or an object. Reasoning in `answer_text` does not count.
    """
    text = without_reasoning(answer_text)
    calls = [_read_call(call) for call in tool_calls]
    tried = bool(calls) or CALL_OPEN in text
    valid = CALL_OPEN not in text and all(call.arguments is not None for call in calls)
    if check.kind == "tool":
        right = sorted(call.name for call in calls) == sorted(call.name for call in check.calls)
        ok = valid and right and _same_calls(calls, check.calls)
        return ExampleVerdict(ok, valid if tried else None, right)
    return ExampleVerdict(not tried and _right_text(check, text), valid if tried else None, None)


def judge_raw(check: ExpectedAnswer, raw: str) -> ExampleVerdict:
    """Judge the model's own text, with the calls still in it (`raw` without <|im_end|>)."""
    text, calls = split_calls(raw)
    return judge(check, text, calls)


def split_calls(raw: str) -> tuple[str, list[dict[str, Any]]]:
    """The text beside the calls, and the calls; a malformed call stays in the text."""
    rest, calls = "", []
    body = without_reasoning(raw)
    while CALL_OPEN in body:
        before, _, body = body.partition(CALL_OPEN)
        block, _, body = body.partition(CALL_CLOSE)
        call = _json_object(block)
        if call is not None and isinstance(call.get("name"), str) and "arguments" in call:
            rest += before
            calls.append(call)
        else:
            rest += before + CALL_OPEN + block
    return (rest + body).strip(), calls


def without_reasoning(text: str) -> str:
    """The answer after the reasoning; empty if the reasoning never ends."""
    before, opened, rest = text.partition(THINK_OPEN)
    if not opened:
        return text.rpartition(THINK_CLOSE)[2].strip()
    _, closed, after = rest.partition(THINK_CLOSE)
    return (before + after).strip() if closed else before.strip()


def user(content: str) -> Message:
    """The user's message."""
    return {"role": "user", "content": content}


def answer(text: str, think: str = "") -> Message:
    """The assistant's message."""
    reasoning = f"{THINK_OPEN}\n{think}\n{THINK_CLOSE}\n\n" if think else ""
    return {"role": "assistant", "content": reasoning + text}


def calling(calls: Iterable[Call], think: str = "") -> Message:
    """The assistant's message that calls tools."""
    called = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    reasoning = f"{THINK_OPEN}\n{think}\n{THINK_CLOSE}" if think else ""
    return {"role": "assistant", "content": reasoning, "tool_calls": called}


def tool_result(content: str) -> Message:
    """The result of a tool."""
    return {"role": "tool", "content": content}


def plain_case(
    skill: str, question: str, text: str, think: str = "", also: tuple[str, ...] = ()
) -> TrainingExample:
    """One question and the answer `text`; `also` are other right answers."""
    return TrainingExample(
        skill,
        (user(question), answer(text, think)),
        (),
        ExpectedAnswer("text", texts=(text, *also)),
    )


def _right_text(check: ExpectedAnswer, text: str) -> bool:
    if check.kind == "text":
        return _plain(text) in {_plain(expected) for expected in check.texts}
    if check.kind == "contains":
        has_all = all(part in text for part in check.texts)
        return has_all and not any(part in text for part in check.absent)
    return True


def _plain(text: str) -> str:
    """Normalise white space and drop a last full stop."""
    return " ".join(text.split()).removesuffix(".")


def _same_calls(given: list[Call], expected: tuple[Call, ...]) -> bool:
    left = list(expected)
    for call in given:
        same = next((one for one in left if _same_call(call, one)), None)
        if same is None:
            return False
        left.remove(same)
    return not left


def _same_call(one: Call, other: Call) -> bool:
    return one.name == other.name and _as_json(one.arguments) == _as_json(other.arguments)


def _as_json(value: object) -> str:
    """One spelling of equal JSON: 2.0 is 2, true is not 1."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _read_call(call: Mapping[str, Any]) -> Call:
    called = call.get("function", call)
    arguments = called.get("arguments")
    if isinstance(arguments, str):
        arguments = _json_object(arguments)
    return Call(str(called.get("name")), arguments if isinstance(arguments, dict) else None)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
