#!/usr/bin/env bash
# opentelemetry-instrumentation-openai 0.62.4 (PyPI, of Traceloop's OpenLLMetry) beside
# openinference-instrumentation-openai 0.1.66, with openai 3.57.0 and opentelemetry-sdk 1.45.2.
#
# Expected: a request that ends in an exception has a span with the status `Error` and `error.type` (OpenTelemetry,
# "Recording errors"), streamed or not, as this package writes it for an answer in one piece.
# Seen: a stream of chat completions that raises in its middle has the status `Ok`, no `error.type` and no finish
# reason; one of raw completions has no span at all, because it is never ended. So a server whose answers break off
# looks sound on every dashboard, as agents stream. openinference records the error.
#
# Output seen on 2026-11-30, each with what the caller got:
#   traceloop, chat in one piece: InternalServerError; spans ERROR InternalServerError
#   traceloop, chat streamed: APIError; spans OK None
#   traceloop, completion streamed: APIError; spans none
#   openinference, chat in one piece: InternalServerError; spans ERROR
#   openinference, chat streamed: APIError; spans ERROR
#   openinference, completion streamed: APIError; spans ERROR
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check openai==3.57.0 opentelemetry-sdk==1.45.2 \
  opentelemetry-instrumentation-openai==0.62.4 openinference-instrumentation-openai==0.1.66
cat > "$work/trace.py" <<'PY'
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ERROR = {"error": {"message": "The engine failed.", "type": "server_error", "param": None, "code": None}}

class Fails(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_stream = body.get("stream", False)
        self.send_response(200 if is_stream else 500)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        if not is_stream:
            self.wfile.write(json.dumps(ERROR).encode())
            return
        piece = {"text": "Half"} if "prompt" in body else {"delta": {"role": "assistant", "content": "Half"}}
        kind = "text_completion" if "prompt" in body else "chat.completion.chunk"
        chunk = {"id": "c", "object": kind, "created": 1, "model": "m",
                 "choices": [{"index": 0, **piece, "finish_reason": None}]}
        for data in (chunk, ERROR):
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Fails)
threading.Thread(target=server.serve_forever, daemon=True).start()

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

if sys.argv[1] == "traceloop":
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
else:
    from openinference.instrumentation.openai import OpenAIInstrumentor

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
OpenAIInstrumentor().instrument(tracer_provider=provider)

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)
asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

def traced(what, ask):
    spans.clear()
    try:
        ask()
    except openai.APIError as error:
        raised = type(error).__name__
    seen = []
    for span in spans.get_finished_spans():
        named = [f"{span.attributes.get('error.type')}"] if sys.argv[1] == "traceloop" else []
        seen.append(" ".join([span.status.status_code.name, *named]))
    print(f"{sys.argv[1]}, {what}: {raised}; spans {', '.join(seen) or 'none'}")

traced("chat in one piece", lambda: client.chat.completions.create(**asked))
traced("chat streamed", lambda: list(client.chat.completions.create(**asked, stream=True)))
traced("completion streamed", lambda: list(client.completions.create(model="m", prompt="hi", stream=True)))
PY
for name in traceloop openinference; do
  TRACELOOP_TRACE_CONTENT=false "$work/venv/bin/python" -W ignore "$work/trace.py" "$name" 2>/dev/null
done | tee "$work/out"
diff "$work/out" - <<'OUT'
traceloop, chat in one piece: InternalServerError; spans ERROR InternalServerError
traceloop, chat streamed: APIError; spans OK None
traceloop, completion streamed: APIError; spans none
openinference, chat in one piece: InternalServerError; spans ERROR
openinference, chat streamed: APIError; spans ERROR
openinference, completion streamed: APIError; spans ERROR
OUT
