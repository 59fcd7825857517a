#!/usr/bin/env bash
# anthropic-haystack 8.0.1 with haystack-ai 3.4.1 and anthropic 2.14.0 (PyPI), `AnthropicChatGenerator`.
#
# Expected: what the model says in front of a call stays in its message, and is sent back with the call's result:
# "Claude may include text before tool use" blocks (Anthropic's documentation of tool use), and the history must be what
# the model wrote. Streamed, it is.
# Seen: in one piece, which is the default, the text of an answer with calls is an empty one. The user never sees
# it, and the next prompt has the call alone, so it differs from what the server has in its cache from there on.
#
# Output seen on 2026-11-30:
#   whole: text '', sent back: tool_use
#   streamed: text 'I look.', sent back: text, tool_use
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check \
  anthropic-haystack==8.0.1 haystack-ai==3.4.1 anthropic==2.14.0
HAYSTACK_TELEMETRY_ENABLED=False "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
USAGE = {"input_tokens": 9, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5}

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body)
        blocks, reason = [{"type": "text", "text": "I look."}, CALL], "tool_use"
        if len(body["messages"]) > 1:
            blocks, reason = [{"type": "text", "text": "Done."}], "end_turn"
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                   "stop_reason": None, "stop_sequence": None, "usage": USAGE}
        self.send_response(200)
        if not body.get("stream"):
            answer = json.dumps({**message, "content": blocks, "stop_reason": reason}).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.say("message_start", message=message)
        for index, block in enumerate(blocks):
            empty = {**block, "text": ""} if block["type"] == "text" else block
            delta = {"type": "input_json_delta", "partial_json": "{}"}
            if block["type"] == "text":
                delta = {"type": "text_delta", "text": block["text"]}
            self.say("content_block_start", index=index, content_block=empty)
            self.say("content_block_delta", index=index, delta=delta)
            self.say("content_block_stop", index=index)
        self.say("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=USAGE)
        self.say("message_stop")
    def say(self, kind, **fields):
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

@tool
def look() -> str:
    """Look."""
    return "ok"

for way, callback in (("whole", None), ("streamed", lambda chunk: None)):
    asked.clear()
    generator = AnthropicChatGenerator(model="m", api_key=Secret.from_token("k"))
    agent = Agent(chat_generator=generator, tools=[look], streaming_callback=callback)
    messages = agent.run(messages=[ChatMessage.from_user("hi")])["messages"]
    sent = [block["type"] for block in asked[1]["messages"][1]["content"]]
    print(f"{way}: text {messages[1].text!r}, sent back: {', '.join(sent)}")
PY
diff "$work/out" - <<'OUT'
whole: text '', sent back: tool_use
streamed: text 'I look.', sent back: text, tool_use
OUT
