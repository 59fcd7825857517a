#!/usr/bin/env bash
# openai 3.57.0 (PyPI) and openai 7.59.0 (npm) beside eventsource-parser 4.1.3 (npm).
#
# Expected: fields of an event stream that bring no data are no event. With an empty data buffer nothing is
# dispatched (HTML Living Standard, 9.2.6 "Interpreting an event stream"), so a server may open its stream
# with `retry: 3000`, the usual way to say when to reconnect, or number its comments.
# Seen: openai for Python dispatches an event with empty data for `retry`, `id` and `event` lines alone, and
# for Node for `event` alone; both then fail at reading it as JSON and lose the whole answer, Python with a
# bare `JSONDecodeError` that is none of its own exceptions. A comment line passes.
#
# Output seen on 2026-11-29:
#   retry: 3000: python JSONDecodeError, node 'hello', eventsource-parser 'hello'
#   id: 7: python JSONDecodeError, node 'hello', eventsource-parser 'hello'
#   event: ping: python JSONDecodeError, node SyntaxError, eventsource-parser 'hello'
#   : ping: python 'hello', node 'hello', eventsource-parser 'hello'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0
npm install --silent --no-audit --no-fund --prefix "$work" openai@7.59.0 eventsource-parser@4.1.3
cat > "$work/client.mjs" <<'JS'
import { createParser } from "eventsource-parser";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const body = { model, messages: [{ role: "user", content: "hi" }], stream: true };
const text = (chunk) => chunk.choices[0].delta.content ?? "";
let said = "";
try {
  const client = new OpenAI({ baseURL: url, apiKey: "k", maxRetries: 0, logLevel: "off" });
  for await (const chunk of await client.chat.completions.create(body)) said += text(chunk);
  said = `'${said}'`;
} catch (error) {
  said = error.constructor.name;
}
let parsed = "";
const parser = createParser({
  onEvent: ({ data }) => { if (data !== "[DONE]") parsed += text(JSON.parse(data)); },
});
parser.feed(await (await fetch(`${url}/chat/completions`, { method: "POST", body: JSON.stringify(body) })).text());
console.log(`node ${said}, eventsource-parser '${parsed}'`);
JS
"$work/venv/bin/python" - "$work" 2>/dev/null <<'PY' | tee "$work/out"
import json, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Opens(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"{body['model']}\n\n".encode())
        for delta, reason in [({"content": "hel"}, None), ({"content": "lo"}, None), ({}, "stop")]:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Opens)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

import openai

client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
for line in ("retry: 3000", "id: 7", "event: ping", ": ping"):
    try:
        chunks = client.chat.completions.create(
            model=line, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        said = repr("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    except ValueError as error:
        said = type(error).__name__
    command = ["node", f"{sys.argv[1]}/client.mjs", url, line]
    node = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print(f"{line}: python {said}, {node}")
PY
diff "$work/out" - <<'OUT'
retry: 3000: python JSONDecodeError, node 'hello', eventsource-parser 'hello'
id: 7: python JSONDecodeError, node 'hello', eventsource-parser 'hello'
event: ping: python JSONDecodeError, node SyntaxError, eventsource-parser 'hello'
: ping: python 'hello', node 'hello', eventsource-parser 'hello'
OUT
