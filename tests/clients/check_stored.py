"""What the official Python client sees of stored responses and conversations, as JSON on stdout.

Runs in an environment of its own that has nothing but the client, of either major version, so it
imports nothing of ours. It observes; `test_stored` judges.
"""

import json
import sys
import time
from typing import Any

import openai
from openai import OpenAI

BASE_URL, KEY = sys.argv[1:3]
PATIENCE_S = 60


def history(api: OpenAI) -> Any:
    first = api.responses.create(model="alpha", input="The weather in Athens?", tools=[TOOL])
    call = first.output[-1]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = api.responses.create(
        model="alpha", input=[result], tools=[TOOL], previous_response_id=first.id
    )
    again = api.responses.retrieve(second.id)
    items = list(api.responses.input_items.list(second.id, order="asc", limit=2))
    api.responses.delete(second.id)
    return {
        "text": second.output_text,
        "same": again.model_dump() == second.model_dump(),
        "items": [item.type for item in items],
        "deleted": error_of(lambda: api.responses.retrieve(second.id)),
        "unknown": error_of(
            lambda: api.responses.create(model="alpha", input="x", previous_response_id="resp_0")
        ),
    }


def background(api: OpenAI) -> Any:
    made = api.responses.create(model="alpha", input="Hi", background=True)
    end = time.monotonic() + PATIENCE_S
    while (found := api.responses.retrieve(made.id)).status in {"queued", "in_progress"}:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    events = list(api.responses.retrieve(made.id, stream=True))
    late = list(
        api.responses.retrieve(made.id, stream=True, starting_after=events[3].sequence_number)
    )
    endless = api.responses.create(
        model="alpha", input="never stop", background=True, max_output_tokens=2000
    )
    cancelled = api.responses.cancel(endless.id)
    return {
        "begun": made.status in {"queued", "in_progress"},
        "text": found.output_text,
        "ends": [events[0].type, events[-1].type],
        "late": [event.sequence_number for event in late]
        == [event.sequence_number for event in events[4:]],
        "cancelled": cancelled.status,
    }


def resumed(api: OpenAI) -> Any:
    numbers, response_id = [], ""
    with api.responses.create(model="alpha", input="Hi", background=True, stream=True) as events:
        for event in events:
            numbers.append(event.sequence_number)
            if event.type == "response.created":
                response_id = event.response.id
            if len(numbers) == 5:
                break
    rest = api.responses.retrieve(response_id, stream=True, starting_after=numbers[-1])
    kinds = []
    for event in rest:
        numbers.append(event.sequence_number)
        kinds.append(event.type)
    return {"numbered": numbers == list(range(len(numbers))), "end": kinds[-1]}


def conversations(api: OpenAI) -> Any:
    made = api.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Some stones."}],
        metadata={"a": "b"},
    )
    answer = api.responses.create(model="alpha", input="Think", conversation=made.id)
    items = list(api.conversations.items.list(made.id, order="asc"))
    added = api.conversations.items.create(
        made.id, items=[{"type": "message", "role": "user", "content": "More"}]
    )
    one = api.conversations.items.retrieve(added.data[0].id, conversation_id=made.id)
    api.conversations.items.delete(one.id, conversation_id=made.id)
    changed = api.conversations.update(made.id, metadata={"c": "d"})
    found = api.conversations.retrieve(made.id)
    gone = api.conversations.delete(made.id)
    return {
        "thought": answer.output[0].type,
        "items": [item.type for item in items],
        "one": one.type,
        "metadata": [changed.metadata, found.metadata],
        "deleted": [gone.deleted, error_of(lambda: api.conversations.retrieve(made.id))],
    }


def error_of(call: Any) -> Any:
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    return None


TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def main() -> None:
    with OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as api:
        checks = (history, background, resumed, conversations)
        print(json.dumps({check.__name__: check(api) for check in checks}))


if __name__ == "__main__":
    main()
