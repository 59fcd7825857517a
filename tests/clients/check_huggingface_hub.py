"""huggingface_hub as a client of a gateway: `python check_huggingface_hub.py URL KEY`; prints JSON.

It observes; `test_frameworks` judges. Its client writes a schema in TGI's form.
"""

import json
import sys
from typing import Any

from huggingface_hub import InferenceClient

TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main(url: str, key: str) -> dict[str, Any]:
    client = InferenceClient(base_url=url, api_key=key)
    tools: Any = [{"type": "function", "function": TOOL}]

    def chat(messages: Any, model: str = "alpha", **options: Any) -> Any:
        return client.chat.completions.create(model=model, messages=messages, **options)

    hello = [{"role": "user", "content": "Hello"}]
    asked = [{"role": "user", "content": "What is the weather in Athens?"}]
    (call,) = chat(asked, tools=tools).choices[0].message.tool_calls
    function = {"name": call.function.name, "arguments": call.function.arguments}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "Athens: sunny"}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": PERSON},
    }
    ann = [{"role": "user", "content": "Ann is 40."}]
    person = chat(ann, "tiny", response_format=form, max_tokens=200)
    return {
        "chat": chat(hello).choices[0].message.content,
        "stream": "".join(
            chunk.choices[0].delta.content or "" for chunk in chat(hello, stream=True)
        ),
        "tools": {
            "call": [call.function.name, json.loads(call.function.arguments)],
            "text": chat([*asked, called, result], tools=tools).choices[0].message.content,
        },
        "structured": json.loads(person.choices[0].message.content),
    }


print(json.dumps(main(*sys.argv[1:])))
