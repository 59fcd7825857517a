#!/usr/bin/env bash
# litellm 1.110.2 (PyPI), between Anthropic's Messages and OpenAI's chat completions.
#
# Expected: `tool_choice.disable_parallel_tool_use` of Messages ("Claude will output at most one tool use",
# Anthropic's documentation of tools) becomes `parallel_tool_calls: false` of a chat. litellm converts the
# same setting the other way round.
# Seen: it is dropped without a word in every kind of `tool_choice`. A client that runs one call at a time
# gets several.
#
# Output seen on 2026-11-29:
#   messages to chat, auto: "auto", parallel_tool_calls None
#   messages to chat, any: "required", parallel_tool_calls None
#   chat to messages: {"type": "any", "disable_parallel_tool_use": true}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import asyncio, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []
CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
MESSAGE = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
           "stop_sequence": None, "content": [{"type": "text", "text": "ok"}],
           "usage": {"input_tokens": 1, "output_tokens": 1}}

class Both(BaseHTTPRequestHandler):
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        body = json.dumps(CHAT if self.path.endswith("/chat/completions") else MESSAGE).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Both)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"

import litellm

litellm.suppress_debug_info = True
common = {"api_key": "k", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
parameters = {"type": "object", "properties": {}}
for kind in ("auto", "any"):
    asyncio.run(litellm.anthropic.messages.acreate(
        model="hosted_vllm/m", api_base=f"{url}/v1", **common, tools=[{"name": "f", "input_schema": parameters}],
        tool_choice={"type": kind, "disable_parallel_tool_use": True}))
    chosen = json.dumps(asked[-1]["tool_choice"])
    print(f"messages to chat, {kind}: {chosen}, parallel_tool_calls {asked[-1].get('parallel_tool_calls')}")
litellm.completion(model="anthropic/m", api_base=url, **common, tool_choice="required", parallel_tool_calls=False,
                   tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])
print("chat to messages:", json.dumps(asked[-1]["tool_choice"]))
PY
diff "$work/out" - <<'OUT'
messages to chat, auto: "auto", parallel_tool_calls None
messages to chat, any: "required", parallel_tool_calls None
chat to messages: {"type": "any", "disable_parallel_tool_use": true}
OUT
