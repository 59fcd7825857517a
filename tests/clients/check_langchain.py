"""langchain-openai against a gateway: `python check_langchain.py URL KEY`; prints JSON.

It observes; `test_frameworks` judges.
"""

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the weather in Athens?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def get_weather(city: str, days: int) -> str:
    """Get the weather of a city."""
    return f"{city}: sunny for {days} days"


def tool_turn(model: Any) -> Any:
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage(QUESTION)]
    called = bound.invoke(messages)
    (call,) = called.tool_calls
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    end = bound.invoke([*messages, called, result])
    return {"call": [call["name"], call["args"]], "text": end.text}


def main(url: Any, key: Any) -> Any:
    def model(name: Any, **options: Any) -> Any:
        return ChatOpenAI(model=name, base_url=url, api_key=key, max_retries=0, **options)

    chat = model("alpha")
    new = model("alpha", use_responses_api=True)
    person = model("tiny", max_tokens=200).with_structured_output(Person)
    return {
        "chat": chat.invoke("Hello").text,
        "stream": "".join(chunk.text for chunk in chat.stream("Hello")),
        "tools": tool_turn(chat),
        "structured": person.invoke("Ann is 40.").model_dump(),
        "responses": new.invoke("Hello").text,
        "responses stream": "".join(chunk.text for chunk in new.stream("Hello")),
        "responses tools": tool_turn(new),
        "responses structured": model("tiny", max_tokens=200, use_responses_api=True)
        .with_structured_output(Person, method="json_schema")
        .invoke("Ann is 40.")
        .model_dump(),
    }


print(json.dumps(main(*sys.argv[1:])))
