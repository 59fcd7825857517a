"""A turn with a tool by an SDK's own streams and defaults: `drive_sdk.py NAME URL MODEL PROMPT`.

It does what an SDK's documentation shows; the SDK alone tries again.
"""

import json
import sys
from pathlib import Path
from typing import Any

PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


def openai(url: str, model: str, prompt: str) -> Any:
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="sk-none")
    tool = {"type": "function", "function": {"name": "read_note", "parameters": PARAMETERS}}
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        with client.chat.completions.stream(model=model, messages=messages, tools=[tool]) as stream:
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            note = Path(f"{json.loads(call.function.arguments)['name']}.txt").read_text()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": note})


def anthropic(url: str, model: str, prompt: str) -> Any:
    from anthropic import Anthropic

    client = Anthropic(base_url=url.removesuffix("/v1"), api_key="sk-none")
    tool: Any = {"name": "read_note", "input_schema": PARAMETERS}
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        with client.messages.stream(
            model=model, messages=messages, tools=[tool], max_tokens=1000
        ) as stream:
            message = stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return message.content[0].text
        messages.append({"role": "assistant", "content": message.content})
        notes = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": Path(f"{call.input['name']}.txt").read_text(),
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": notes})


if __name__ == "__main__":
    name, url, model, prompt = sys.argv[1:]
    print({"openai": openai, "anthropic": anthropic}[name](url, model, prompt))
