"""Parts of messages as any API writes them, at each API: none loses its text."""

from typing import Any

import pytest

from gateway.api import ApiError
from tests.gateway.api.test_odd_bodies import USER, chat, message, response

PICTURE = "data:image/png;base64,AAAA"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TEXT_URL = "data:text/plain;base64,TG9vaw=="
TEXT_FILE = {"filename": "", "file_data": TEXT_URL}
NAMED_FILE = {"filename": "a.txt", "file_data": TEXT_URL}
DOCUMENT = {"type": "document", "title": "Atlas", "context": "Of 1900."}
BASE64 = {"type": "base64", "media_type": "text/plain", "data": "TG9vaw=="}
RESULT = {"type": "search_result", "content": [{"type": "text", "text": "Look"}]}

TEXTS: list[Any] = [
    {"type": "text", "text": "Look"},
    {"type": "input_text", "text": "Look"},
    {"type": "output_text", "text": "Look", "annotations": []},
    {"text": "Look"},
    {"type": "file", "file": TEXT_FILE},
    {"type": "input_file", **TEXT_FILE},
    {"type": "document", "source": {"type": "text", "data": "Look"}},
    {"type": "document", "title": None, "context": "", "source": {"type": "text", "data": "Look"}},
    {"type": "document", "source": {"type": "content", "content": [{"text": "Look"}]}},
    {"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
]


@pytest.mark.parametrize("part", TEXTS)
@pytest.mark.parametrize("ask", [chat, message, response])
def test_a_text_by_any_name_is_read_at_each_api(ask: Any, part: dict[str, Any]) -> None:
    """What the user said was left out, or the request refused."""
    said = [{"role": "user", "content": [part]}]
    asked = ask(input=said) if ask is response else ask(messages=said)
    assert [one.content for one in asked.messages] == ["Look"]
    assert (asked.ignored, asked.other_part) == ((), None)


NAMED: list[tuple[Any, str]] = [
    ({**DOCUMENT, "source": {"type": "text", "data": "Look"}}, "Title: Atlas\nContext: Of 1900.\n"),
    (
        {**DOCUMENT, "source": {"type": "content", "content": "Look"}},
        "Title: Atlas\nContext: Of 1900.\n",
    ),
    ({**DOCUMENT, "source": BASE64}, "Title: Atlas\nContext: Of 1900.\n"),
    ({"type": "document", "title": "Atlas", "source": BASE64}, "Title: Atlas\n"),
    ({"type": "file", "file": NAMED_FILE}, "File: a.txt\n"),
    ({"type": "input_file", **NAMED_FILE}, "File: a.txt\n"),
    (
        {**RESULT, "title": "Maps", "source": "https://a.example"},
        "Title: Maps\nSource: https://a.example\n",
    ),
    (RESULT, ""),
]


@pytest.mark.parametrize(("part", "lines"), NAMED)
@pytest.mark.parametrize("ask", [chat, message, response])
def test_what_is_said_of_a_text_stands_over_it(ask: Any, part: dict[str, Any], lines: str) -> None:
    """The model and a provider were not told which of several documents was which."""
    said = [{"role": "user", "content": [part]}]
    asked = ask(input=said) if ask is response else ask(messages=said)
    assert [one.content for one in asked.messages] == [f"{lines}Look"]
    sent = asked.raw["messages"][0]["content"]
    if ask is chat and part["type"] == "file":
        assert sent == [part]  # its own form, with the name
        return
    texts = [sent] if isinstance(sent, str) else [one["text"] for one in sent]
    assert "\n".join(texts) == f"{lines}Look"


def test_a_document_in_a_result_keeps_its_title() -> None:
    """A document in a result keeps its title, as one of the user's does."""
    call = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
    document = {**DOCUMENT, "source": {"type": "text", "data": "Look"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document]}
    said = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert message(messages=said).messages[-1].content == "Title: Atlas\nContext: Of 1900.\nLook"


def test_the_context_of_a_file_goes_before_it() -> None:
    """A provider gets the title as the file's name."""
    source = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    said = [{"role": "user", "content": [{**DOCUMENT, "source": source}]}]
    context, file = message(messages=said).raw["messages"][0]["content"]
    assert context == {"type": "text", "text": "Context: Of 1900."}
    assert file["file"]["filename"] == "Atlas"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "image", "source": SOURCE},
        {"type": "input_image", "image_url": PICTURE},
    ],
)
@pytest.mark.parametrize("ask", [chat, message, response])
def test_a_picture_by_any_name_is_one_at_each_api(ask: Any, part: dict[str, Any]) -> None:
    """A picture by any name is one at each API for a provider; the model is told that there was
    one.
    """
    said = [{"role": "user", "content": [{"type": "text", "text": "Look"}, part]}]
    asked = ask(input=said) if ask is response else ask(messages=said)
    assert "[A picture was here." in asked.messages[0].content
    assert asked.raw["messages"][0]["content"][1]["image_url"] == {"url": PICTURE}
    assert asked.ignored == ()


def test_a_string_is_a_text_among_the_parts_of_a_chat() -> None:
    """A string among the parts of a chat is a text, as vLLM reads it."""
    request = chat(messages=[{"role": "user", "content": ["Hi", {"type": "text", "text": "you"}]}])
    assert request.messages[0].content == "Hi\nyou"
    assert request.raw["messages"][0]["content"][0] == {"type": "text", "text": "Hi"}


def test_calls_and_results_as_parts_of_a_chat() -> None:
    """Anthropic's form, which clients keep for names of its models whatever the path."""
    mark = {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}}
    said = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "see", "input": {"at": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "see", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A cat."},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": "A dog."}],
                },
                mark,
            ],
        },
    ]
    request = chat(messages=said)
    _, asked, *results, last = request.messages
    assert asked.content == "I look."
    assert [(one.name, one.arguments) for one in asked.tool_calls] == [
        ("see", '{"at":1}'),
        ("see", "{}"),
    ]
    assert [one.content for one in results] == ["A cat.", "A dog."]
    assert [one.tool_call_id for one in results] == [one.id for one in asked.tool_calls]
    assert (last.role, last.content) == ("user", "and now?")
    assert [one["role"] for one in request.raw["messages"]][1:] == [
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    with pytest.raises(ApiError) as refused:
        chat(messages=[USER, {"role": "assistant", "content": [{"type": "tool_use"}]}])
    assert refused.value.param == "messages[1].content[0].name"


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
@pytest.mark.parametrize("kind", ["tool_use", "tool_result"])
def test_a_call_or_result_where_none_can_be_ends_no_session(role: str, kind: str) -> None:
    """A call or result where none can be stays as text, in JSON."""
    part = {"type": kind, "id": "a", "tool_use_id": "a", "name": "f", "content": "x"}
    request = chat(messages=[USER, {"role": role, "content": [part]}, USER])
    assert len(request.messages) == 3


@pytest.mark.parametrize(
    ("parts", "thought"),
    [
        ([{"type": "thinking", "thinking": "Hm.", "signature": "s"}], "Hm."),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}], "Hm."),
        ([{"type": "reasoning", "text": "Hm."}], "Hm."),
        ([{"type": "redacted_thinking", "data": "x"}], None),
        ([{"type": "thinking", "thinking": 5}, {"type": "thinking"}], None),
    ],
)
def test_thoughts_among_the_parts_of_a_chat(parts: list[Any], thought: str | None) -> None:
    """Each turn of the assistant said that a part was left out, and the model wrote it, too."""
    turn = {"role": "assistant", "content": [*parts, {"type": "text", "text": "Yes."}]}
    request = chat(messages=[USER, turn, USER])
    said = request.messages[1]
    assert (said.content, said.reasoning_content) == ("Yes.", thought)
    assert request.other_part is None
    assert request.raw["messages"][1] == turn
    named = chat(messages=[USER, {**turn, "reasoning_content": "Own."}, USER])
    assert named.messages[1].reasoning_content == "Own."


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        (7, "7"),
        (True, "true"),
        (0.5, "0.5"),
        ([{"a": 1}], '[{"a":1}]'),
        ([1, "b"], '[1,"b"]'),
        (["a", "b"], "a\nb"),
    ],
)
def test_a_result_of_a_chat_may_be_of_any_type(result: Any, text: str) -> None:
    """A result of a chat may be of any type, as at the other APIs: programs put what a tool
    returned there as it is.
    """
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [USER, {"role": "assistant", "tool_calls": [call]}]
    request = chat(messages=[*said, {"role": "tool", "tool_call_id": "c", "content": result}])
    assert request.messages[2].content == text
    for role in ("user", "system", "assistant"):
        with pytest.raises(ApiError) as refused:
            chat(messages=[{"role": role, "content": {"a": 1}}])
        assert refused.value.param == "messages[0].content"


@pytest.mark.parametrize(("given", "text"), [([1], "[1]"), (5, "5"), ({}, "{}"), (None, "{}")])
def test_arguments_of_any_type_end_no_session(given: Any, text: str) -> None:
    """Arguments of any type are taken, because an earlier turn wrote them."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    request = chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}])
    assert request.messages[1].tool_calls[0].arguments == text
