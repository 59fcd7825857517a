"""What the official Anthropic client for Python sees of a gateway, as JSON on stdout.

Runs in an environment of its own that has nothing but the client, so it imports nothing of ours. It
observes; `test_anthropic` judges.
"""

import json
import sys
from typing import Any

import anthropic

ROOT_URL, KEY = sys.argv[1:3]
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}


def client(**options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        **{"base_url": ROOT_URL, "api_key": KEY, "max_retries": 0, **options}
    )


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def models() -> Any:
    with client() as api:
        return [model.id for model in api.models.list()]


def message() -> Any:
    with client() as api:
        answer = api.messages.create(model="claude-any", max_tokens=99, messages=said("Hi"))
    return {
        "text": answer.content[0].text,
        "stop": answer.stop_reason,
        "counts": answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0,
    }


def stream() -> Any:
    with (
        client() as api,
        api.messages.stream(model="claude-any", max_tokens=99, messages=said("Hi")) as events,
    ):
        pieces = list(events.text_stream)
        final = events.get_final_message()
    return {
        "text": "".join(pieces),
        "final": final.content[0].text,
        "in_pieces": len(pieces) > 2,
        "stop": final.stop_reason,
        "counts": final.usage.input_tokens > 0 and final.usage.output_tokens > 0,
    }


def thinking() -> Any:
    with (
        client() as api,
        api.messages.stream(
            model="claude-any",
            max_tokens=2000,
            messages=said("Think"),
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as events,
    ):
        thought, text = events.get_final_message().content
    return {"thought": thought.thinking, "signed": bool(thought.signature), "text": text.text}


def tools() -> Any:
    """A call, and the answer to its result; both streamed."""
    asked = said("What is the weather in Athens?")
    with client() as api:
        with api.messages.stream(
            model="claude-any", max_tokens=99, messages=asked, tools=[TOOL]
        ) as events:
            final = events.get_final_message()
        calls = [block for block in final.content if block.type == "tool_use"]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls
        ]
        history = [
            *asked,
            {"role": "assistant", "content": final.content},
            {"role": "user", "content": results},
        ]
        counted = api.messages.count_tokens(model="claude-any", messages=history, tools=[TOOL])
        answer = api.messages.create(
            model="claude-any", max_tokens=99, messages=history, tools=[TOOL]
        )
    usage = answer.usage
    return {
        "stop": final.stop_reason,
        "calls": [[call.name, call.input] for call in calls],
        "text": answer.content[-1].text,
        "count_is_exact": counted.input_tokens
        == usage.input_tokens + (usage.cache_read_input_tokens or 0),
    }


def tool_runner() -> Any:
    """The SDK's own loop. The loop of version 2.14 asks the server to hold the conversation, and
    sends the whole conversation once that is refused; version 0.87 always sends the whole
    conversation.
    """
    ran = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """Get the weather of a city."""
        ran.append([city, days])
        return "Sunny."

    with client() as api:
        runner = api.beta.messages.tool_runner(
            model="claude-any",
            max_tokens=99,
            messages=said("What is the weather in Athens and Paris?"),
            tools=[get_weather],
        )
        return {"ran": ran, "text": runner.until_done().content[-1].text}


def half_a_call() -> Any:
    """A call that breaks off within a string, streamed and whole."""
    asked: Any = {
        "model": "claude-any",
        "max_tokens": 99,
        "messages": said("Tell me half the weather"),
        "tools": [TOOL],
    }
    with client() as api:
        with api.messages.stream(**asked) as events:
            finals = [events.get_final_message()]
        finals.append(api.messages.create(**asked))
    return [[one.stop_reason, one.content[-1].type, one.content[-1].input] for one in finals]


def errors() -> Any:
    def raised(act: Any) -> Any:
        try:
            act()
        except anthropic.APIStatusError as error:
            return [type(error).__name__, error.status_code, bool(error.request_id)]
        return "no error"

    def ask(api: anthropic.Anthropic, **fields: Any) -> Any:
        return lambda: api.messages.create(
            **{"model": "claude-any", "max_tokens": 9, "messages": said("Hi"), **fields}
        )

    with client() as api, client(api_key="wrong") as stranger:
        return {
            "wrong key": raised(ask(stranger)),
            "unknown model": raised(ask(api, model="nobody-knows-it")),
            "bad body": raised(ask(api, extra_body={"temperature": "hot"})),
            "over the window": raised(
                ask(api, model="narrow", messages=said("word and number 7 " * 600))
            ),
        }


CHECKS = (models, message, stream, thinking, tools, tool_runner, half_a_call, errors)

if __name__ == "__main__":
    print(json.dumps({check.__name__: check() for check in CHECKS}))
