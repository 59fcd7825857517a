#!/usr/bin/env bash
# agent-framework-openai 1.17.0 with agent-framework-core 1.23.0 (PyPI), streamed, through OpenAI's Responses API.
#
# Expected: the example of its own documentation (`Agent`, "Use streaming responses") prints the answer:
# `async for update in stream: print(update.text, end="")`.
# Seen: it prints every text twice, the words one by one and then all of them again: `response.output_text.done`, which
# each text of that API ends with, becomes an update with the whole text, to be taken in the place of the others
# (`merge_mode` of its contents, which `text` does not heed). The final response is right, and
# `OpenAIChatCompletionClient` has each word once.
#
# Output seen on 2026-11-30:
#   OpenAIChatCompletionClient: printed 'It is sunny.', final 'It is sunny.'
#   OpenAIChatClient: printed 'It is sunny.It is sunny.', final 'It is sunny.'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check \
  agent-framework-openai==1.17.0 agent-framework-core==1.23.0
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import asyncio, contextlib, io, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ["It ", "is ", "sunny."]
TEXT = "".join(WORDS)

def chat():
    for delta, reason in [({"role": "assistant", "content": ""}, None), *(({"content": word}, None) for word in WORDS), ({}, "stop")]:
        yield {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
               "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

def responses():
    made = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    whole = {**item, "status": "completed", "content": [{**part, "text": TEXT}]}
    yield {"type": "response.created", "response": made}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **at, "part": part}
    for word in WORDS:
        yield {"type": "response.output_text.delta", **at, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": TEXT, "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": {**part, "text": TEXT}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": whole}
    usage = {"input_tokens": 1, "output_tokens": 3, "total_tokens": 4, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}
    yield {"type": "response.completed", "response": {**made, "status": "completed", "output": [whole], "usage": usage}}

class Sunny(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        is_chat = self.path.endswith("/chat/completions")
        for number, event in enumerate(chat() if is_chat else responses()):
            if not is_chat:
                event["sequence_number"] = number
                self.wfile.write(f"event: {event['type']}\n".encode())
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if is_chat:
            self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Sunny)
threading.Thread(target=server.serve_forever, daemon=True).start()

from agent_framework import Agent
from agent_framework_openai import OpenAIChatClient, OpenAIChatCompletionClient

async def ask(kind):
    agent = Agent(client=kind(model="m", api_key="k", base_url=f"http://127.0.0.1:{server.server_port}/v1"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        stream = agent.run("How is the weather?", stream=True)
        async for update in stream:
            print(update.text, end="")
        final = await stream.get_final_response()
    print(f"{kind.__name__}: printed {printed.getvalue()!r}, final {final.text!r}")

async def main():
    await ask(OpenAIChatCompletionClient)
    await ask(OpenAIChatClient)

asyncio.run(main())
PY
diff "$work/out" - <<'OUT'
OpenAIChatCompletionClient: printed 'It is sunny.', final 'It is sunny.'
OpenAIChatClient: printed 'It is sunny.It is sunny.', final 'It is sunny.'
OUT
