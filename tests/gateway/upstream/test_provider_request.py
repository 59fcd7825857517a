"""What a provider gets of a request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ParamsConfig
from gateway.api import Signer, parse_messages, parse_responses
from gateway.api.chat_parser import parse_chat_request
from gateway.api.request import ChatRequest
from gateway.upstream.provider_request import (
    ProviderRequest,
    apply_params,
    provider_request,
    session_name,
)


def request(system: str = "S", question: str = "U", /, *more: str, **fields: Any) -> ChatRequest:
    turns = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    turns += [{"role": "user", "content": text} for text in more]
    return parse_chat_request(json.dumps({"model": "m", "messages": turns, **fields}).encode())


def sent(asked: ChatRequest, hint: str | None, *headers: tuple[bytes, bytes]) -> ProviderRequest:
    return provider_request(
        asked, list(headers), params=ParamsConfig(), session_hint=hint, session="named"
    )


def test_fields_are_dropped_defaulted_and_set() -> None:
    """Null counts as not given; what is set wins over the client."""
    params = ParamsConfig(
        set={"store": False, "top_k": 5}, default={"temperature": 0.5, "seed": 1}, drop=("think",)
    )
    raw = {"think": False, "temperature": 0.9, "seed": None, "top_k": 9, "other": [1]}
    assert apply_params(raw, params) == {
        "temperature": 0.9,
        "seed": 1,
        "top_k": 5,
        "other": [1],
        "store": False,
    }
    assert raw["think"] is False


def test_usage_is_asked_for_only_where_it_may_be() -> None:
    """Responses and Messages ask for it on their own; a client of chats has written it."""
    fields: dict[str, Any] = {"stream": True, "max_output_tokens": 5, "max_tokens": 5}
    turns = [{"role": "user", "content": "U"}]
    body = json.dumps({"model": "m", "input": "U", "messages": turns, **fields}).encode()
    signer = Signer(bytes(32))
    for asked in (parse_responses(body, signer).request, parse_messages(body, signer)):
        for stream_usage in (True, False):
            given = provider_request(
                asked,
                [],
                params=ParamsConfig(),
                session_hint=None,
                session="",
                stream_usage=stream_usage,
            )
            assert ("stream_options" in given.request.raw) == stream_usage
    own = request(stream=True, stream_options={"include_usage": True})
    asked_by_client = provider_request(
        own, [], params=ParamsConfig(), session_hint=None, session="", stream_usage=False
    )
    assert asked_by_client.request is own


NAMES = st.sampled_from("abcde")


@given(
    st.dictionaries(NAMES, st.none() | st.integers()),
    st.dictionaries(NAMES, st.integers()),
    st.dictionaries(NAMES, st.integers()),
    st.lists(NAMES).map(tuple),
)
def test_rewriting_keeps_its_promises(
    raw: dict[str, Any], always: dict[str, Any], default: dict[str, Any], drop: tuple[str, ...]
) -> None:
    """Set values stand; dropped ones are gone unless put back in; the rest is the client's. A
    second time changes nothing when nothing is both dropped and put in.
    """
    params = ParamsConfig(set=always, default=default, drop=drop)
    done = apply_params(dict(raw), params)
    for name in {*raw, *always, *default}:
        if name in always:
            assert done[name] == always[name]
        elif name in default and (name in drop or raw.get(name) is None):
            assert done[name] == default[name]
        elif name in drop:
            assert name not in done
        else:
            assert done[name] == raw[name]


@pytest.mark.parametrize("hint", ["prompt_cache_key", "session_id", "user"])
def test_a_field_names_the_session(hint: str) -> None:
    """The field with the session's name is set, unless the client has set it."""
    assert sent(request(), hint).request.raw[hint] == "named"
    assert sent(request(**{hint: "own"}), hint).request.raw[hint] == "own"
    assert sent(request(), hint).headers == ()


def test_a_header_names_the_session() -> None:
    """A header names the session, as fields do; other headers stay."""
    other = (b"x-other", b"1")
    assert sent(request(), "X-Session-Affinity", other).headers == (
        other,
        (b"x-session-affinity", b"named"),
    )
    own = (b"x-session-affinity", b"own")
    assert sent(request(), "x-session-affinity", own).headers == (own,)


def test_without_a_hint_nothing_changes() -> None:
    """The very body that the client sent."""
    asked = request(future=1)
    assert sent(asked, None).request is asked


def test_turns_of_one_conversation_have_one_name() -> None:
    """Turns of one conversation have one name, made of the client's name for it, else of its
    beginning; never shared between keys, and never the client's name itself.
    """
    first, second = request("S", "U"), request("S", "U", "more")
    assert session_name("k", None, first) == session_name("k", None, second)
    assert session_name("k", None, first) != session_name("k", None, request("S", "V"))
    assert session_name("k", None, first) != session_name("j", None, first)
    assert session_name("k", "s", first) == session_name("k", "s", request("T", "V"))
    assert session_name("k", "s", first) != session_name("j", "s", first)
    assert "secret-session" not in session_name("k", "secret-session", first)
    turns = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "system", "content": "S"},
        {"role": "user", "content": "more"},
    ]
    plain = [
        parse_chat_request(json.dumps({"model": "m", "messages": turns[:end]}).encode())
        for end in (1, 2, 3, 4)
    ]
    assert len({session_name("k", None, one) for one in plain}) == 1
    assert session_name("k", "\ud800", first)
