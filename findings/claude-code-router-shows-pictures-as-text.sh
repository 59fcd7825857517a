#!/usr/bin/env bash
# @musistudio/claude-code-router 2.0.0 (npm), in its default form: Messages of Claude Code to a server with OpenAI's
# chat completions.
#
# Expected: a picture in the result of a tool, as Claude Code's Read and screenshots of MCP servers have it, reaches the
# model as a picture or not at all, and a streamed answer says how many tokens it took.
# Seen: the result becomes one text, the JSON of its parts with the picture in base64. A screenshot of 300 kB is
# 400,000 characters of prompt, again in every turn that follows. The router does not ask for the usage of a
# stream, and reports 0 tokens, by which Claude Code judges when to compact: so it does not, and the window ends.
# A picture of the user's own comes as one, and an answer in one piece has its usage.
#
# Output seen on 2026-11-29:
#   the user's picture: parts text, image_url
#   the tool's picture: a text of 400080 characters, with its base64: True
#   usage in one piece: 1000 and 5, streamed: 0 and 0; asked for in the stream: False
set -euo pipefail
work=$(mktemp -d); router=
trap 'kill $router 2>/dev/null; rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @musistudio/claude-code-router@2.0.0
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
server=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$work/.claude-code-router"
cat > "$work/.claude-code-router/config.json" <<JSON
{"LOG": false, "HOST": "127.0.0.1", "PORT": $port, "APIKEY": "k", "NON_INTERACTIVE_MODE": true,
 "Providers": [{"name": "here", "api_base_url": "http://127.0.0.1:$server/v1/chat/completions", "api_key": "k",
                "models": ["m"]}],
 "Router": {"default": "here,m"}}
JSON
HOME="$work" node "$work/node_modules/@musistudio/claude-code-router/dist/cli.js" start > "$work/log" 2>&1 &
router=$!
python3 - "$port" "$server" <<'PY' | tee "$work/out"
import base64, json, random, sys, threading, time, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body)
        answer = {"id": "chatcmpl-1", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.get("stream") else "application/json")
        self.end_headers()
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            whole = {**answer, "object": "chat.completion", "choices": [choice], "usage": usage}
            self.wfile.write(json.dumps(whole).encode())
            return
        answer["object"] = "chat.completion.chunk"
        chunks = [[{"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": None}],
                  [{"index": 0, "delta": {}, "finish_reason": "stop"}]]
        chunks = [{**answer, "choices": choices} for choices in chunks]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**answer, "choices": [], "usage": usage})
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Server).serve_forever, daemon=True).start()

data = base64.b64encode(random.Random(0).randbytes(300_000)).decode()
picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
messages = [
    {"role": "user", "content": [{"type": "text", "text": "Like this:"}, picture]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [picture]}]},
]

def ask(stream):
    body = {"model": "claude", "max_tokens": 50, "messages": messages, "stream": stream,
            "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    headers = {"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/messages", json.dumps(body).encode(), headers)
    for _ in range(600):
        try:
            return urllib.request.urlopen(request, timeout=60).read().decode()
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.1)

whole = json.loads(ask(False))["usage"]
events = [json.loads(line[6:]) for line in ask(True).splitlines() if line.startswith("data: {")]
streamed = next(event["usage"] for event in events if event["type"] == "message_delta")
first, _, result = asked[0]["messages"]
print("the user's picture: parts", ", ".join(part["type"] for part in first["content"]))
text = result["content"]
print(f"the tool's picture: a {'text' if isinstance(text, str) else 'list'} of {len(text)} characters, "
      f"with its base64: {data in text}")
print(f"usage in one piece: {whole['input_tokens']} and {whole['output_tokens']}, streamed: "
      f"{streamed['input_tokens']} and {streamed['output_tokens']}; asked for in the stream: "
      f"{'stream_options' in asked[1]}")
PY
diff "$work/out" - <<'OUT'
the user's picture: parts text, image_url
the tool's picture: a text of 400080 characters, with its base64: True
usage in one piece: 1000 and 5, streamed: 0 and 0; asked for in the stream: False
OUT
