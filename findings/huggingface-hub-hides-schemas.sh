#!/usr/bin/env bash
# huggingface-hub 2.4.0 beside openai 3.57.0 (PyPI), `InferenceClient(base_url=...).chat.completions.create`.
#
# Expected: `response_format` of the type `json_schema`, which the package documents, reaches the server as it is. The
# client is a drop-in replacement for OpenAI's, for local servers with OpenAI's API too: its guide to inference names
# llama.cpp, vLLM, LiteLLM and TGI ("Using a local endpoint").
# Seen: for every server at a URL it becomes `json_object` with the schema as `value`, a form of TGI alone, and
# `strict` is dropped. A server that knows OpenAI's types sees a request for any JSON: the schema is lost without a
# word, and answers have other properties than it names.
#
# Output seen on 2026-11-30:
#   openai: json_schema with json_schema, type; strict True
#   huggingface-hub: json_object with type, value; strict None
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check huggingface-hub==2.4.0 openai==3.57.0
"$work/venv/bin/python" -W ignore - <<'PY' | tee "$work/out"
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sent = []

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        sent.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        message = {"role": "assistant", "content": "{}"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

from huggingface_hub import InferenceClient
from openai import OpenAI

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}
asked = {"model": "m", "messages": [{"role": "user", "content": "Who?"}],
         "response_format": {"type": "json_schema", "json_schema": {"name": "who", "strict": True, "schema": SCHEMA}}}
at = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "k"}

for name, client in (("openai", OpenAI(**at)), ("huggingface-hub", InferenceClient(**at))):
    client.chat.completions.create(**asked)
    form = sent[-1]["response_format"]
    strict = form.get("json_schema", {}).get("strict")
    print(f"{name}: {form['type']} with {', '.join(sorted(form))}; strict {strict}")
PY
diff "$work/out" - <<'OUT'
openai: json_schema with json_schema, type; strict True
huggingface-hub: json_object with type, value; strict None
OUT
