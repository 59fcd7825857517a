#!/usr/bin/env bash
# openai 3.57.0 (PyPI) and openai 7.59.0 (npm), `chat.completions.stream()`.
#
# Expected: the event `tool_calls.function.arguments.done` comes once for each call, when its arguments
# are whole: programs run the tool there.
# Seen: it comes when the deltas turn to another call. Of two calls whose deltas alternate (each says its
# `index`) Python says once that both are done, with no arguments yet; Node says it three times of each.
# And where `finish_reason` comes in the same chunk as the last call, it never comes, while `content.done`
# does for a text. The final message is right in each case.
#
# Output seen on 2026-11-29:
#   python alternating: f: '', g: '' (of 2 calls)
#   python reason with the call: nothing (of 1 call)
#   node alternating: f: '', g: '', f: '{"x":', g: '{"y":', f: '{"x":1}', g: '{"y":2}' (of 2 calls)
#   node reason with the call: nothing (of 1 call)
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0
npm install --silent --no-audit --no-fund --prefix "$work" openai@7.59.0
cat > "$work/client.mjs" <<'JS'
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "k", maxRetries: 0 });
const tools = ["f", "g"].map((name) => ({ type: "function", function: { name, parameters: { type: "object" } } }));
for (const model of ["alternating", "reason with the call"]) {
  const done = [];
  const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "hi" }], tools });
  stream.on("tool_calls.function.arguments.done", (event) => done.push(`${event.name}: '${event.arguments}'`));
  const count = (await stream.finalMessage()).tool_calls.length;
  console.log(`node ${model}: ${done.join(", ") || "nothing"} (of ${count} call${count > 1 ? "s" : ""})`);
}
JS
"$work/venv/bin/python" - "$work" <<'PY' | tee "$work/out"
import json, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def part(index, arguments, name=None):
    opened = {"id": f"call_{index}", "type": "function"} if name else {}
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"tool_calls": [{"index": index, **opened, "function": function}]}

SCRIPTS = {
    "alternating": [(part(0, "", "f"), None), (part(1, "", "g"), None), (part(0, '{"x":'), None),
                    (part(1, '{"y":'), None), (part(0, "1}"), None), (part(1, "2}"), None), ({}, "tool_calls")],
    "reason with the call": [(part(0, '{"x":1}', "f"), "tool_calls")],
}

class Calls(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in [({"role": "assistant", "content": None}, None), *SCRIPTS[body["model"]]]:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

import openai

client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
for model in SCRIPTS:
    with client.chat.completions.stream(
        model=model, messages=[{"role": "user", "content": "hi"}], tools=tools
    ) as stream:
        done = [f"{event.name}: {event.arguments!r}" for event in stream
                if event.type == "tool_calls.function.arguments.done"]
        count = len(stream.get_final_completion().choices[0].message.tool_calls)
    print(f"python {model}: {', '.join(done) or 'nothing'} (of {count} call{'s' if count > 1 else ''})", flush=True)
subprocess.run(["node", f"{sys.argv[1]}/client.mjs", url], check=True)
PY
diff "$work/out" - <<'OUT'
python alternating: f: '', g: '' (of 2 calls)
python reason with the call: nothing (of 1 call)
node alternating: f: '', g: '', f: '{"x":', g: '{"y":', f: '{"x":1}', g: '{"y":2}' (of 2 calls)
node reason with the call: nothing (of 1 call)
OUT
