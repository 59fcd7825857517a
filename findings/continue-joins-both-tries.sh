#!/usr/bin/env bash
# @continuedev/cli 1.5.47 (npm).
#
# Expected: where a stream ends in an error that a retry may cure (OpenAI's `server_error`), the client asks
# again and takes the second answer in the place of the half one.
# Seen: it asks again, and joins both tries. A text begins twice. A call gets the arguments of both, which
# are no JSON then; the tool runs with none at all, so a tool without required parameters would run in a
# way that no answer asked for.
#
# Output seen on 2026-11-29:
#   text: asked 2, said 'It is It is done.'
#   call: asked 3, the history has Bash {} answered 'Required parameter "command" missing for tool "Bash"'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @continuedev/cli@1.5.47
python3 - "$work" <<'PY' | tee "$work/out"
import json, os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ERROR = {"message": "The server had an error.", "type": "server_error", "param": None, "code": None}
ARGUMENTS = json.dumps({"command": "echo hi"})
asked = []

def begun(arguments):
    function = {"name": "Bash", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}

class FailsOnce(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        asked.append(body["messages"])
        half, whole = {"content": "It is "}, [{"content": "It is "}, {"content": "done."}]
        if body["model"] == "call" and not any(one["role"] == "tool" for one in body["messages"]):
            half = begun(ARGUMENTS[:12])
            whole = [half, {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[12:]}}]}]
        if len(asked) == 1:
            self.say({"role": "assistant", "content": ""})
            self.say(half)
            self.wfile.write(f"data: {json.dumps({'error': ERROR})}\n\n".encode())
            return
        for delta in ({"role": "assistant", "content": ""}, *whole):
            self.say(delta)
        self.say({}, "tool_calls" if "tool_calls" in half else "stop")
        self.wfile.write(b"data: [DONE]\n\n")
    def say(self, delta, reason=None):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), FailsOnce)
threading.Thread(target=server.serve_forever, daemon=True).start()
closed = "http://127.0.0.1:9"  # it knows no other address
for model in ("text", "call"):
    asked.clear()
    home = Path(sys.argv[1], model)
    home.mkdir()
    (home / "config.yaml").write_text(f"""
name: own
version: 0.0.1
schema: v1
models:
  - {{name: own, provider: openai, model: {model}, apiBase: "http://127.0.0.1:{server.server_port}/v1", apiKey: k,
     roles: [chat], capabilities: [tool_use]}}
""")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "HTTP_PROXY": closed, "HTTPS_PROXY": closed, "NO_PROXY": "127.0.0.1"}
    argv = [f"{sys.argv[1]}/node_modules/.bin/cn", "--config", f"{home}/config.yaml", "--auto", "-p", "Say hi"]
    done = subprocess.run(argv, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if model == "text":
        print(f"text: asked {len(asked)}, said {done.stdout.strip()!r}")
        continue
    call = next(one for one in asked[-1] if one.get("tool_calls"))["tool_calls"][0]["function"]
    result = next(one for one in asked[-1] if one["role"] == "tool")["content"]
    print(f"call: asked {len(asked)}, the history has {call['name']} {call['arguments']} answered {result!r}")
PY
diff "$work/out" - <<'OUT'
text: asked 2, said 'It is It is done.'
call: asked 3, the history has Bash {} answered 'Required parameter "command" missing for tool "Bash"'
OUT
