"""openai-agents with one of OpenAI's own client-run tools, in its own environment:
`drive_own_tools.py TOOL URL`. Prints what the tool was asked, and the agent's last words.
"""

import asyncio
import sys
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    OpenAIResponsesModel,
    Runner,
    ShellTool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


def run_shell(request: Any) -> str:
    print("asked", request.data.action.commands)
    return "a note"


def run_local_shell(request: Any) -> str:
    print("asked", request.data.action.command)
    return "a note"


class Editor:
    """An editor that writes nothing."""

    def create_file(self, operation: Any) -> str:
        print("asked", operation.type, operation.path, repr(operation.diff))
        return "made"

    update_file = delete_file = create_file


TOOLS = {
    "shell": ShellTool(executor=run_shell),
    "local_shell": LocalShellTool(executor=run_local_shell),
    "apply_patch": ApplyPatchTool(editor=Editor()),
}


async def main(tool: str, url: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="sk-none")
    model = OpenAIResponsesModel(model="alpha", openai_client=client)
    agent = Agent(name="agent", tools=[TOOLS[tool]], model=model)
    done = Runner.run_streamed(agent, f"Use {tool} once")
    async for _ in done.stream_events():
        pass
    print(done.final_output)


asyncio.run(main(*sys.argv[1:]))
