#!/usr/bin/env bash
# haystack-ai 3.4.1 with openai 3.57.0 (PyPI), its `Agent` with one tool, by all its defaults.
#
# Expected: an agent ends when the model calls nothing. By `exit_conditions`, whose default is "text", it returns "when
# it generates a message without tool calls" (haystack's reference, `Agent`); a refusal is such a message (OpenAI's API
# reference, `message.refusal` and the part `refusal`). A response that has failed (`status` "failed") is an error.
# Seen: the generators drop a refusal, and take a failed response for an empty message. The agent ends at a text alone,
# so it asks again, with one more empty message of the assistant each time, until `max_agent_steps`: a hundred paid
# requests, and the answer is empty. So it is for an answer without words, too.
#
# Output seen on 2026-11-30:
#   OpenAIChatGenerator, text: asked 1, 'Done.', text
#   OpenAIChatGenerator, refusal: asked 100, None, max_agent_steps
#   OpenAIChatGenerator, nothing: asked 100, '', max_agent_steps
#   OpenAIResponsesChatGenerator, text: asked 1, 'Done.', text
#   OpenAIResponsesChatGenerator, refusal: asked 100, None, max_agent_steps
#   OpenAIResponsesChatGenerator, failed: asked 100, None, max_agent_steps
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check haystack-ai==3.4.1 openai==3.57.0
HAYSTACK_TELEMETRY_ENABLED=False "$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []

def chat(name):
    said = {"text": {"content": "Done."}, "refusal": {"content": None, "refusal": "I cannot."}, "nothing": {"content": ""}}
    message = {"role": "assistant", "refusal": None, **said[name]}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": name,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}

def response(name):
    part = {"text": {"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []},
            "refusal": {"type": "refusal", "refusal": "I cannot."}}.get(name)
    item = {"id": f"msg_{len(asked)}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    error = {"code": "server_error", "message": "The server had an error."} if name == "failed" else None
    return {"id": f"resp_{len(asked)}", "object": "response", "created_at": 1, "model": name, "output": [item] if part else [],
            "status": "failed" if error else "completed", "error": error, "incomplete_details": None,
            "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto",
            "tools": [], "top_p": 1.0, "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 12}}

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body)
        answer = json.dumps((chat if "messages" in body else response)(body["model"])).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

@tool
def look() -> str:
    """Look."""
    return "ok"

place = {"api_key": Secret.from_token("k"), "api_base_url": f"http://127.0.0.1:{server.server_port}/v1"}
for generator, names in ((OpenAIChatGenerator, ("text", "refusal", "nothing")),
                         (OpenAIResponsesChatGenerator, ("text", "refusal", "failed"))):
    for name in names:
        asked.clear()
        agent = Agent(chat_generator=generator(model=name, **place), tools=[look])
        ended = agent.run(messages=[ChatMessage.from_user("hi")])
        print(f"{generator.__name__}, {name}: asked {len(asked)}, {ended['last_message'].text!r}, {ended['exit_reason']}")
PY
diff "$work/out" - <<'OUT'
OpenAIChatGenerator, text: asked 1, 'Done.', text
OpenAIChatGenerator, refusal: asked 100, None, max_agent_steps
OpenAIChatGenerator, nothing: asked 100, '', max_agent_steps
OpenAIResponsesChatGenerator, text: asked 1, 'Done.', text
OpenAIResponsesChatGenerator, refusal: asked 100, None, max_agent_steps
OpenAIResponsesChatGenerator, failed: asked 100, None, max_agent_steps
OUT
