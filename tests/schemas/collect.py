"""Lists the tools of real MCP servers, and the JSON schemas that zod writes of its types.

Owns the pinned servers, how each is asked over its standard input, and the bounds of that. Their
schemas are not part of this repository, because not every licence allows that. Must not know
grammars.

    python -m tests.schemas.collect FOLDER    # a folder where npm has installed PACKAGES
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ANSWER_S: Final = 60
"""The bound on one server. None needs a network to list its tools."""

ZOD: Final = "zod@4.6.7"


class Server(NamedTuple):
    """The npm package with its version, its command, arguments and what it wants to find in its
    environment. No key is a real one.
    """

    package: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


SERVERS: Final = (
    Server("@modelcontextprotocol/server-everything@2026.8.31", "mcp-server-everything"),
    Server("@modelcontextprotocol/server-filesystem@2026.8.31", "mcp-server-filesystem", (".",)),
    Server("@modelcontextprotocol/server-memory@2026.8.31", "mcp-server-memory"),
    Server(
        "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
        "mcp-server-sequential-thinking",
    ),
    Server(
        "@modelcontextprotocol/server-github@2025.4.8",
        "mcp-server-github",
        environment=(("GITHUB_PERSONAL_ACCESS_TOKEN", "none"),),
    ),
    Server(
        "@modelcontextprotocol/server-gitlab@2025.4.25",
        "mcp-server-gitlab",
        environment=(("GITLAB_PERSONAL_ACCESS_TOKEN", "none"),),
    ),
    Server(
        "@modelcontextprotocol/server-slack@2025.4.25",
        "mcp-server-slack",
        environment=(("SLACK_BOT_TOKEN", "none"), ("SLACK_TEAM_ID", "none")),
    ),
    Server(
        "@modelcontextprotocol/server-google-maps@0.6.2",
        "mcp-server-google-maps",
        environment=(("GOOGLE_MAPS_API_KEY", "none"),),
    ),
    Server(
        "@modelcontextprotocol/server-brave-search@0.6.2",
        "mcp-server-brave-search",
        environment=(("BRAVE_API_KEY", "none"),),
    ),
    Server("@modelcontextprotocol/server-puppeteer@2025.5.12", "mcp-server-puppeteer"),
    Server(
        "firecrawl-mcp@3.22.2", "firecrawl-mcp", environment=(("FIRECRAWL_API_KEY", "fc-none"),)
    ),
    Server("@playwright/mcp@0.0.83", "playwright-mcp", ("--caps", "vision,pdf,testing,tracing")),
    Server("chrome-devtools-mcp@1.11.0", "chrome-devtools-mcp", ("--no-usage-statistics",)),
    Server("@upstash/context7-mcp@4.1.1", "context7-mcp"),
    Server(
        "@notionhq/notion-mcp-server@2.5.2",
        "notion-mcp-server",
        environment=(("NOTION_TOKEN", "none"),),
    ),
    Server("tavily-mcp@0.2.22", "tavily-mcp", environment=(("TAVILY_API_KEY", "tvly-none"),)),
    Server("exa-mcp-server@3.4.1", "exa-mcp-server", environment=(("EXA_API_KEY", "none"),)),
    Server("mcp-server-kubernetes@4.1.7", "mcp-server-kubernetes"),
    Server(
        "@sentry/mcp-server@0.36.0",
        "sentry-mcp",
        ("--access-token=none", "--host=localhost"),
    ),
)
PACKAGES: Final = (ZOD, *(server.package for server in SERVERS))


class Tool(NamedTuple):
    """A tool of a server, or a type of zod as one."""

    source: str
    name: str
    schema: dict[str, Any]


def tools_of(server: Server, folder: Path) -> list[Tool]:
    """The tools that a server lists. Raises `OSError` or `ValueError` if it lists none."""
    command = [str(folder / "node_modules/.bin" / server.command), *server.arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **dict(server.environment)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    timer = threading.Timer(ANSWER_S, process.kill)
    timer.start()
    try:
        return [
            Tool(server.package, tool["name"], tool["inputSchema"]) for tool in _listed(process)
        ]
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def _listed(process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
    client = {"name": "collect", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    _ask(process, 1, "initialize", start)
    _send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    cursor, number = None, 2
    while True:
        page = _ask(process, number, "tools/list", {"cursor": cursor} if cursor else {})
        yield from page["tools"]
        cursor, number = page.get("nextCursor"), number + 1
        if not cursor:
            return


def _send(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _ask(
    process: "subprocess.Popen[bytes]", number: int, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    assert process.stdout is not None
    _send(process, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    for line in process.stdout:
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # some servers greet on their standard output
        if answer.get("id") == number and "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
    raise ValueError("it ended without an answer")


def zod_types(folder: Path) -> list[Tool]:
    """The schemas of zod's types, each as the only parameter of a tool."""
    script = Path(__file__).with_name("zod_types.mjs").read_text(encoding="utf-8")
    made = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        timeout=ANSWER_S,
        check=True,
    )
    return [Tool(ZOD, name, schema) for name, schema in json.loads(made.stdout).items()]


def collect(folder: Path) -> list[Tool]:
    """All tools and types, with a line for each source."""
    found = zod_types(folder)
    print(f"{ZOD}: {len(found)} types", flush=True)
    for server in SERVERS:
        try:
            tools = tools_of(server, folder)
        except (OSError, ValueError, KeyError) as error:
            print(f"{server.package}: skipped, {error}", flush=True)
            continue
        print(f"{server.package}: {len(tools)} tools", flush=True)
        found += tools
    return found


def main() -> None:
    """Write `FOLDER/schemas.json`."""
    folder = Path(sys.argv[1]).absolute()
    found = [tool._asdict() for tool in collect(folder)]
    folder.joinpath("schemas.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
