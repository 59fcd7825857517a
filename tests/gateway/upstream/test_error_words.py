"""The words of servers that refuse: where they stand, and which of them say that a prompt is too
long.
"""

import json
from typing import Any

import pytest

from gateway.api import Failed, UpstreamBody, message_error
from gateway.upstream import ChatEvents
from gateway.upstream.error_words import OVERFLOW, error_of, has_form, quoted
from gateway.upstream.provider_failures import ProviderFailures
from gateway.upstream.redaction import without_inner_words
from protocol.redaction import Redaction

WINDOW, TOKENS = 4096, 5000
CUT_KEY = "Qx7LmN2pR5tV8wZ1dK4hB9s" * 2
"""Its beginning does not look like a key."""

OVERFLOWS: list[tuple[str, Any, bool]] = [
    (
        "openai",
        {
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, your "
                "messages resulted in 5000 tokens. Please reduce the length of the messages.",
                "code": "context_length_exceeded",
            }
        },
        True,
    ),
    (
        "vllm, older",
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested "
            "5000 tokens (4900 in the messages, 100 in the completion). Please reduce the length "
            "of the messages or completion.",
            "code": 400,
        },
        True,
    ),
    (
        "vllm, newer",
        {
            "error": {
                "message": "The decoder prompt (length 5000) is longer than the maximum model "
                "length of 4096. Make sure that `max_model_len` is no smaller than the number of "
                "text tokens.",
                "type": "BadRequestError",
                "code": 400,
            }
        },
        True,
    ),
    (
        "vllm, a little too much output",
        {
            "error": {
                "message": "'max_tokens' or 'max_completion_tokens' is too large: 200. This "
                "model's maximum context length is 4096 tokens and your request has 4000 input "
                "tokens (200 > 4096 - 4000).",
                "code": 400,
            }
        },
        False,
    ),
    (
        "sglang",
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length (4096 "
            "tokens).",
            "type": "BadRequestError",
            "code": 400,
        },
        True,
    ),
    (
        "sglang, with a completion",
        {
            "message": "Requested token count exceeds the model's maximum context length of 4096 "
            "tokens. You requested a total of 5000 tokens: 4900 tokens from the input messages and "
            "100 tokens for the completion."
        },
        True,
    ),
    (
        "sglang, http server",
        {"detail": "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens)."},
        True,
    ),
    (
        "llama.cpp",
        {
            "error": {
                "code": 400,
                "message": "request (5000 tokens) exceeds the available context size (4096 "
                "tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }
        },
        True,
    ),
    (
        "anthropic",
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 5000 tokens > 4096 maximum",
            },
        },
        True,
    ),
    (
        "litellm",
        {
            "error": {
                "message": "litellm.ContextWindowExceededError: litellm.BadRequestError: "
                "AnthropicException - prompt is too long: 5000 tokens > 4096 maximum",
                "code": "400",
            }
        },
        True,
    ),
    ("ollama", {"error": "the input length exceeds the context length"}, False),
    ("ollama, newer", {"error": "prompt too long; exceeded max context length by 9 tokens"}, False),
    (
        "gemini",
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (5000) exceeds the maximum number of tokens "
                    "allowed (4096).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        True,
    ),
    (
        "mistral",
        {
            "object": "error",
            "message": "Prompt contains 5000 tokens and 0 draft tokens, too large for model with "
            "4096 maximum context length",
        },
        True,
    ),
    (
        "xai",
        {
            "error": "This model's maximum prompt length is 4096 but the request contains 5,000 "
            "tokens."
        },
        True,
    ),
    ("bedrock", {"message": "Input is too long for requested model."}, False),
    ("moonshot", {"error": {"message": "Your request exceeded model token limit: 4096"}}, False),
]


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    ("body", "has_numbers"), [case[1:] for case in OVERFLOWS], ids=[case[0] for case in OVERFLOWS]
)
def test_a_full_window_is_one_error(body: Any, has_numbers: bool, status: int) -> None:
    """A full window is one error from any server: 400, one code, the words on which agents compact,
    and both numbers.
    """
    error = error_of(status, json.dumps(body).encode())
    assert error is not None
    assert (error.status, error.code) == (400, OVERFLOW)
    assert error.overflow == ((WINDOW, TOKENS) if has_numbers else None)
    told = json.loads(message_error(error, "req_1"))["error"]
    assert told["type"] == "invalid_request_error"
    assert "prompt is too long" in told["message"].lower()
    if has_numbers:
        assert told["message"] == "prompt is too long: 5000 tokens > 4096 maximum"
    # The error goes to other APIs as its JSON, which says the same.
    again = error_of(400, error.body())
    assert again is not None
    assert (again.code, again.overflow) == (error.code, error.overflow)


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached: your request exceeds the limit of 4096 tokens per minute.",
        "max_tokens must be at most 4096",
        "Unknown field 'context_length'.",
        "The image is too long.",
        "'messages' is too short",
    ],
)
def test_other_refusals_do_not_compress_a_history(text: str) -> None:
    """Other refusals do not make a client compress its history, which would be lost for nothing."""
    error = error_of(400, json.dumps({"error": {"message": text}}).encode())
    assert error is not None
    assert error.code is None
    assert error.message == text


def test_an_id_that_is_too_long_is_no_full_window() -> None:
    """OpenAI's code is that of a text that is too long."""
    for place, is_overflow in (
        ("messages[2].tool_calls[0].id", False),
        ("input[3].call_id", False),
        ("messages[1].content", True),
    ):
        words = f"Invalid '{place}': string too long. Expected a string with maximum length 64."
        body = {"error": {"message": words, "param": place, "code": "string_above_max_length"}}
        error = error_of(400, json.dumps(body).encode())
        assert error is not None
        assert (error.code == OVERFLOW) is is_overflow


WORDS: list[tuple[Any, str]] = [
    ({"error": {"message": "No such voice."}}, "No such voice."),
    ({"error": "No such voice."}, "No such voice."),
    ({"message": "No such voice.", "type": "Bad", "code": 400}, "No such voice."),
    ({"detail": "No such voice."}, "No such voice."),
    ({"detail": {"error": {"message": "No such voice."}}}, "No such voice."),
    (
        {"detail": [{"loc": ["body", "messages", 0], "msg": "Field required", "type": "missing"}]},
        "messages.0: Field required",
    ),
    ({"errors": [{"message": "No such voice."}, "Nor tone."]}, "No such voice.; Nor tone."),
    ({"error": {"error": {"message": "No such voice."}}}, "No such voice."),
]


@pytest.mark.parametrize(("body", "words"), WORDS)
def test_the_words_are_found_where_they_stand(body: Any, words: str) -> None:
    """An object, a text, a list, one within another."""
    data = json.dumps(body).encode()
    error = error_of(422, data)
    assert error is not None
    assert (error.status, error.message) == (422, words)
    assert has_form(data) is (isinstance(body.get("error"), dict) and "message" in body["error"])
    found: list[Any] = []
    ChatEvents(found.append).take(UpstreamBody(422, data))
    (failed,) = found
    assert isinstance(failed, Failed)
    assert failed.error.message == words


def test_text_has_words_and_a_page_has_none() -> None:
    """Rust servers refuse in plain text; proxies send pages."""
    error = error_of(400, b"Failed to deserialize the JSON body: missing field `role`")
    assert error is not None
    assert "missing field" in error.message
    for body in (b"<html>no</html>", b"", b"{}", b'{"x": 1}', b"\xff\xfe"):
        assert error_of(400, body) is None


def test_a_short_key_is_no_part_of_a_word() -> None:
    """A short key is hidden where it stands alone, and not within a word; a long key is hidden
    everywhere.
    """
    redaction = Redaction([b"EMPTY", b"sk", b"sk-a-long-secret-key"])
    text = b"EMPTYING the task (sk): EMPTY, risk-free, xsk-a-long-secret-keyx"
    assert redaction.of(text) == (
        b"EMPTYING the task ([redacted]): [redacted], risk-free, x[redacted]x"
    )
    assert not redaction.is_in(b"a task")
    assert redaction.is_in(b"Bearer EMPTY")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (rb'{"a": "key \u0073k-abc/def+12345="}', b'{"a": "key [redacted]"}'),
        (rb'{"a": "key sk-abc\/def+12345="}', b'{"a": "key [redacted]"}'),
        (
            rb'{"a": "\u0022sk-abc\/def\u002b12345\u003D\u0022"}',
            rb'{"a": "\u0022[redacted]\u0022"}',
        ),
        (rb'{"a": "no key\/\u0073 \u00e9"}', rb'{"a": "no key\/\u0073 \u00e9"}'),
    ],
)
def test_a_key_is_hidden_however_json_writes_it(told: bytes, shown: bytes) -> None:
    """PHP writes `\\/`, and any character may be written by its number."""
    redaction = Redaction([b"sk-abc/def+12345="])
    assert redaction.of(told) == shown


@pytest.mark.parametrize(
    "fields",
    [
        {"message": "bad", "param": "y" * 380 + CUT_KEY},
        {"message": "y " * 990 + CUT_KEY},
        {"message": "prompt is too long " + "y" * 1960 + CUT_KEY},
        {"message": "prompt is too long" + " " * 1960 + CUT_KEY},
        {"message": [{"msg": "y" * 990}, {"msg": "y" * 990 + CUT_KEY}]},
    ],
)
def test_a_key_is_hidden_where_a_text_is_cut(fields: dict[str, Any]) -> None:
    """A bound on a text may fall within a key, whose beginning is none of a client's business."""
    failures = ProviderFailures("one", Redaction([CUT_KEY.encode()]), is_engine=False)
    error = error_of(413, json.dumps({"error": {"type": "t", **fields}}).encode())
    assert error is not None
    assert CUT_KEY[:4].encode() not in failures.refusal(error).body
    assert CUT_KEY[:4] not in failures.shown(quoted(error.message))


@pytest.mark.parametrize("size", range(6, 30))
def test_a_key_is_hidden_where_a_quoted_text_is_cut(size: int) -> None:
    """So it is where the text is quoted within another one."""
    failures = ProviderFailures("one", Redaction([CUT_KEY.encode()]), is_engine=False)
    text = ("y" * 300)[: 300 - size] + " bad: " + CUT_KEY + "z" * 60
    assert CUT_KEY[:4] not in failures.shown(quoted(text))


def test_an_escaped_backslash_stays() -> None:
    """A body stays JSON: what follows a backslash that stands for itself is text."""
    told = rb'{"a": "C:\\u0041bc", "b": "\u0073k-abc\/def+12345="}'
    shown = Redaction([b"sk-abc/def+12345="]).of(told)
    assert json.loads(shown) == {"a": r"C:\u0041bc", "b": "[redacted]"}


def test_a_key_with_signs_of_json_is_hidden() -> None:
    """JSON writes a backslash before some of them."""
    key = 'sk-"abc\\def"-12345\u00e9'
    redaction = Redaction([key.encode()])
    for is_ascii in (True, False):
        told = json.dumps({"a": f"key {key}"}, ensure_ascii=is_ascii).encode()
        assert json.loads(redaction.of(told)) == {"a": "key [redacted]"}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("upstream http://10.1.2.3:8000/in refused", "upstream [redacted] refused"),
        ("node 10.1.2.3:80 is down", "node [redacted] is down"),
        ("bad key sk-of-another-house", "bad [redacted]"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: [redacted]"),
        ("Incorrect API key provided: sk-proj1234.", "Incorrect API key provided: [redacted]"),
        ("each token generated, a key required", "each token generated, a key required"),
        ("code token_limit_reached", "code token_limit_reached"),
        ("key=abcdefgh1", "[redacted]"),
        ("CUDA 12.8.1 out of memory, 3 of 8 tokens", "CUDA 12.8.1 out of memory, 3 of 8 tokens"),
        ("the model is over capacity", "the model is over capacity"),
    ],
)
def test_the_words_of_a_failure_show_no_other_house(told: str, shown: str) -> None:
    """The words of a failure are shown without addresses and keys; what says why is kept."""
    assert without_inner_words(told) == shown


@pytest.mark.parametrize("head", ["data: ", "event: error\ndata: "])
def test_a_refusal_may_be_an_event(head: str) -> None:
    """Where a stream was asked for, some servers refuse in its form."""
    refusal = json.dumps({"error": {"message": "Your prompt is too long", "code": "x"}})
    body = f"{head}{refusal}\n\ndata: [DONE]\n\n".encode()
    told = error_of(400, body)
    assert told is not None
    assert told.message.startswith("Your prompt is too long")
    assert told.code == "context_length_exceeded"
