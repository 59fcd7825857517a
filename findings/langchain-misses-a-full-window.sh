#!/usr/bin/env bash
# langchain-openai 1.7.4 (PyPI) with openai 2.54.0 and 3.57.0, both of which it allows.
#
# Expected: a 400 with the code `context_length_exceeded` and OpenAI's own text raises a
# `ContextOverflowError` (langchain-core), on which langchain's and deepagents' middlewares summarise the
# history and go on. With openai 2.54.0 it does.
# Seen: with openai 3.57.0 it is an `OpenAIInvalidRequestError`, which is no `ContextOverflowError`. The
# package looks for the code in `str(error)`, and openai 3 has only the message there. The code is still
# in `error.code`.
#
# Output seen on 2026-11-29:
#   openai 2.54.0: OpenAIContextOverflowError, overflow True, code context_length_exceeded
#   openai 3.57.0: OpenAIInvalidRequestError, overflow False, code context_length_exceeded
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cat > "$work/ask.py" <<'PY'
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. "
         "Please reduce the length of the messages.")

class Full(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": WORDS, "type": "invalid_request_error", "param": "messages",
                 "code": "context_length_exceeded"}
        body = json.dumps({"error": error}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Full)
threading.Thread(target=server.serve_forever, daemon=True).start()

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)
try:
    chat.invoke("hi")
except openai.BadRequestError as error:
    is_overflow = isinstance(error, ContextOverflowError)
    print(f"openai {openai.__version__}: {type(error).__name__}, overflow {is_overflow}, code {error.code}")
PY
for version in 2.54.0 3.57.0; do
    python3 -m venv "$work/$version"
    "$work/$version/bin/pip" install -q --disable-pip-version-check langchain-openai==1.7.4 openai==$version
    "$work/$version/bin/python" -W ignore "$work/ask.py"
done | tee "$work/out"
diff "$work/out" - <<'OUT'
openai 2.54.0: OpenAIContextOverflowError, overflow True, code context_length_exceeded
openai 3.57.0: OpenAIInvalidRequestError, overflow False, code context_length_exceeded
OUT
