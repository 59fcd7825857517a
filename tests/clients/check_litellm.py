"""litellm as a client of a gateway: `python check_litellm.py URL KEY`; prints JSON.

It observes; `test_frameworks` judges.
"""

import json
import sys
from typing import Any

import litellm
from pydantic import BaseModel, Field

QUESTION = "What is the weather in Athens?"
TOOL = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def main(url: Any, key: Any) -> Any:
    at = {"api_base": url, "api_key": key, "max_retries": 0}

    def chat(messages: Any, model: Any = "openai/alpha", **options: Any) -> Any:
        return litellm.completion(model=model, messages=messages, **at, **options)

    def new(given: Any, model: Any = "openai/alpha", **options: Any) -> Any:
        return litellm.responses(model=model, input=given, **at, **options)

    hello = [{"role": "user", "content": "Hello"}]
    asked = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": TOOL}]
    called = chat(asked, tools=tools).choices[0].message
    (call,) = called.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "Athens: sunny"}
    end = chat([*asked, called, result], tools=tools)
    ann = [{"role": "user", "content": "Ann is 40."}]
    person = chat(ann, model="openai/tiny", response_format=Person, max_tokens=200)
    made = new(QUESTION, tools=[{"type": "function", **TOOL}])
    (made_call,) = [one for one in made.output if one.type == "function_call"]
    events = list(new("Hello", stream=True))
    return {
        "chat": chat(hello).choices[0].message.content,
        "stream": "".join(
            chunk.choices[0].delta.content or "" for chunk in chat(hello, stream=True)
        ),
        "tools": {
            "call": [call.function.name, json.loads(call.function.arguments)],
            "text": end.choices[0].message.content,
        },
        "structured": json.loads(person.choices[0].message.content),
        "responses": new("Hello").output[-1].content[0].text,
        "responses stream": "".join(
            event.delta for event in events if event.type == "response.output_text.delta"
        ),
        "responses call": [made_call.name, json.loads(made_call.arguments)],
    }


print(json.dumps(main(*sys.argv[1:])))
