"""pydantic-ai against a gateway: `python check_pydantic_ai.py URL KEY`; prints JSON.

It observes; `test_frameworks` judges.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the weather in Athens?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


async def streamed(model: Any) -> Any:
    async with Agent(model).run_stream("Hello") as run:
        return "".join([part async for part in run.stream_text(delta=True)])


async def tool_turn(model: Any) -> Any:
    agent = Agent(model)
    calls = []

    @agent.tool_plain
    def get_weather(city: str, days: int) -> str:
        """Get the weather of a city."""
        calls.append(["get_weather", {"city": city, "days": days}])
        return f"{city}: sunny for {days} days"

    end = await agent.run(QUESTION)
    (call,) = calls
    return {"call": call, "text": end.output}


async def structured(model: Any, output: Any) -> Any:
    agent = Agent(model, output_type=output(Person), model_settings={"max_tokens": 200})
    return (await agent.run("Ann is 40.")).output.model_dump()


async def main(url: Any, key: Any) -> Any:
    provider = OpenAIProvider(base_url=url, api_key=key)
    chat, new = (
        kind("alpha", provider=provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)
    )
    tiny, new_tiny = (
        kind("tiny", provider=provider) for kind in (OpenAIChatModel, OpenAIResponsesModel)
    )
    return {
        "chat": (await Agent(chat).run("Hello")).output,
        "stream": await streamed(chat),
        "tools": await tool_turn(chat),
        "structured": await structured(tiny, NativeOutput),
        "by a tool": await structured(tiny, ToolOutput),
        "responses": (await Agent(new).run("Hello")).output,
        "responses stream": await streamed(new),
        "responses tools": await tool_turn(new),
        "responses structured": await structured(new_tiny, NativeOutput),
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
