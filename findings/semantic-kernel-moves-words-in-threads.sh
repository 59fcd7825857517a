#!/usr/bin/env bash
# semantic-kernel 1.45.0 with openai 3.57.0 (PyPI), `ChatCompletionAgent` with a thread.
#
# Expected: the thread that an agent keeps between turns, and sends with the next one, holds what the model wrote: a
# message of the assistant has its `content` beside its `tool_calls` (OpenAI's API reference).
# Seen: a text in front of a call is not sent back with it. In one piece it is gone. Streamed, the text of all answers
# of a turn is joined, so the words from before the call stand in the last answer, behind the call's result, where the
# model never said them. Prompts differ from what the server has in its cache from the call on.
#
# Output seen on 2026-11-30, what the second turn sends:
#   invoke: user 'hi', assistant None and a call, tool 'ok', assistant 'Done.', user 'again'
#   invoke_stream: user 'hi', assistant None and a call, tool 'ok', assistant 'I look.Done.', user 'again'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check semantic-kernel==1.45.0 openai==3.57.0
"$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import asyncio, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body["messages"])
        is_first = body["messages"][-1].get("content") == "hi"
        text, reason = ("I look.", "tool_calls") if is_first else ("Done.", "stop")
        function = {"name": "Tools-look", "arguments": "{}"}
        call = {"id": "call_1", "type": "function", "function": function}
        base = {"id": "c", "created": 1, "model": "m"}
        self.send_response(200)
        if body.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            deltas = [{"role": "assistant", "content": ""}, {"content": text}]
            deltas += [{"tool_calls": [{"index": 0, **call}]}] if is_first else []
            for delta, end in [*((delta, None) for delta in deltas), ({}, reason)]:
                choice = {"index": 0, "delta": delta, "finish_reason": end}
                chunk = {**base, "object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            return
        message = {"role": "assistant", "content": text} | ({"tool_calls": [call]} if is_first else {})
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        answer = json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

class Tools:
    @kernel_function
    def look(self) -> str:
        """Look."""
        return "ok"

def shown(message):
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    call = " and a call" if message.get("tool_calls") else ""
    return f"{message['role']} {content!r}{call}"

async def turns(method):
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k")
    service = OpenAIChatCompletion(ai_model_id="m", async_client=client)
    agent = ChatCompletionAgent(service=service, name="agent", plugins=[Tools()])
    thread = None
    for said in ("hi", "again"):
        async for response in getattr(agent, method)(messages=said, thread=thread):
            thread = response.thread
    told = [message for message in asked[-1] if message["role"] != "system"]
    print(f"{method}: {', '.join(map(shown, told))}")

for method in ("invoke", "invoke_stream"):
    asyncio.run(turns(method))
PY
diff "$work/out" - <<'OUT'
invoke: user 'hi', assistant None and a call, tool 'ok', assistant 'Done.', user 'again'
invoke_stream: user 'hi', assistant None and a call, tool 'ok', assistant 'I look.Done.', user 'again'
OUT
