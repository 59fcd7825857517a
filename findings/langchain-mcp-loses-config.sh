#!/usr/bin/env bash
# langchain 1.5.2 with langchain-core 1.8.3 and fastmcp 4.1.6 (PyPI), tools of an MCP server by `langchain.mcp`.
#
# Expected: what the model writes for a parameter reaches the server, whatever its name: MCP leaves names to the server
# (specification, "Tools", `inputSchema`), and the model sees each of them in the tool's schema.
# Seen: arguments named `config` and `run_manager` are lost on the way, because a tool of langchain passes two things of
# its own under these names. Nothing is said: the server takes its default, or refuses the call for a missing
# parameter, and the model tries the same again. The package langchain-mcp-adapters 0.3.2, which this replaces, does so
# too (langchain-ai/langchain, issues 40476 and 40535).
#
# Output seen on 2026-11-30:
#   config: fastmcp 'given', langchain 'the default'
#   run_manager: fastmcp 'given', langchain 'the default'
#   callbacks: fastmcp 'given', langchain 'given'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check \
  langchain==1.5.2 langchain-core==1.8.3 fastmcp==4.1.6
"$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import asyncio

from fastmcp import Client, FastMCP
from langchain.mcp import as_langchain_tool

server = FastMCP("own")

@server.tool
def deploy(path: str, config: str = "the default") -> str:
    return config

@server.tool
def start(path: str, run_manager: str = "the default") -> str:
    return run_manager

@server.tool
def watch(path: str, callbacks: str = "the default") -> str:
    return callbacks

async def main():
    async with Client(server) as client:
        for tool in await client.list_tools():
            name = next(one for one in tool.input_schema["properties"] if one != "path")
            arguments = {"path": "a", name: "given"}
            direct = (await client.call_tool(tool.name, arguments)).content[0].text
            call = {"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}
            message = await (await as_langchain_tool(tool, client)).ainvoke(call)
            print(f"{name}: fastmcp {direct!r}, langchain {message.content[0]['text']!r}")

asyncio.run(main())
PY
diff "$work/out" - <<'OUT'
config: fastmcp 'given', langchain 'the default'
run_manager: fastmcp 'given', langchain 'the default'
callbacks: fastmcp 'given', langchain 'given'
OUT
