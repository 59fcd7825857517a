#!/usr/bin/env bash
# openinference-instrumentation-openai 0.1.66 and opentelemetry-instrumentation-openai 0.62.4 (PyPI, of Traceloop's
# OpenLLMetry), with openai 3.57.0 and opentelemetry-sdk 1.45.2, OpenAI's Responses API.
#
# Expected: each request has a span with its tokens, by which costs are added up. A response that ends at the token limit
# has the `status` "incomplete" and its `usage`, in its last event `response.incomplete` or in the body (OpenAI's API
# reference); it has used the most tokens of all.
# Seen: both count only what is completed, each in one way. openinference knows no other last event than
# `response.completed`, so a streamed response that was cut, or failed, has a span without tokens or text, and without
# an error. Traceloop makes no span at all of one in one piece. Dashboards show less cost than
# the bill, and cut or failed answers not at all.
#
# Output seen on 2026-11-30:
#   openinference, completed, streamed: no error, tokens 12
#   openinference, completed, whole: no error, tokens 12
#   openinference, incomplete, streamed: no error, tokens None
#   openinference, incomplete, whole: no error, tokens 12
#   openinference, failed, streamed: no error, tokens None
#   traceloop, completed, streamed: no error, tokens 12
#   traceloop, completed, whole: no error, tokens 12
#   traceloop, incomplete, streamed: no error, tokens 12
#   traceloop, incomplete, whole: no span
#   traceloop, failed, streamed: no error, tokens 12
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check openai==3.57.0 opentelemetry-sdk==1.45.2 \
  opentelemetry-instrumentation-openai==0.62.4 openinference-instrumentation-openai==0.1.66
cat > "$work/ask.py" <<'PY'
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = []

def response(status, output=()):
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 3,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 12}
    error = {"code": "server_error", "message": "The server had an error."}
    return {"id": f"resp_{len(asked)}", "object": "response", "created_at": 1, "model": "m", "status": status,
            "output": list(output), "error": error if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto",
            "tools": [], "top_p": 1.0, "usage": None if status == "in_progress" else usage}

def events(status):
    item = {"id": f"msg_{len(asked)}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    text = {"type": "output_text", "text": "Half a te", "annotations": [], "logprobs": []}
    whole = {**item, "status": "completed" if status == "completed" else "incomplete", "content": [text]}
    yield {"type": "response.created", "response": response("in_progress")}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **place, "part": {**text, "text": ""}}
    yield {"type": "response.output_text.delta", **place, "delta": text["text"], "logprobs": []}
    if status != "failed":
        yield {"type": "response.output_text.done", **place, "text": text["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": text}
        yield {"type": "response.output_item.done", "output_index": 0, "item": whole}
    yield {"type": f"response.{status}", "response": response(status, [] if status == "failed" else [whole])}

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body)
        told = list(events(body["model"]))
        self.send_response(200)
        if body.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for number, event in enumerate(told):
                data = json.dumps({**event, "sequence_number": number})
                self.wfile.write(f"event: {event['type']}\ndata: {data}\n\n".encode())
            return
        answer = json.dumps(told[-1]["response"]).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
if sys.argv[1] == "openinference":
    from openinference.instrumentation.openai import OpenAIInstrumentor
else:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
OpenAIInstrumentor().instrument(tracer_provider=provider)

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="k", max_retries=0)
for status, ways in (("completed", (True, False)), ("incomplete", (True, False)), ("failed", (True,))):
    for streamed in ways:
        exporter.clear()
        answer = client.responses.create(model=status, input="hi", stream=streamed)
        if streamed:
            for _ in answer:
                pass
        spans = exporter.get_finished_spans()
        tokens = [span.attributes.get("llm.token_count.total", span.attributes.get("gen_ai.usage.total_tokens"))
                  for span in spans]
        state = "an error" if spans and spans[0].status.status_code.name == "ERROR" else "no error"
        seen = f"{state}, tokens {tokens[0]}" if spans else "no span"
        print(f"{sys.argv[1]}, {status}, {'streamed' if streamed else 'whole'}: {seen}")
PY
for package in openinference traceloop; do "$work/venv/bin/python" -W ignore "$work/ask.py" "$package" 2>/dev/null; done | tee "$work/out"
diff "$work/out" - <<'OUT'
openinference, completed, streamed: no error, tokens 12
openinference, completed, whole: no error, tokens 12
openinference, incomplete, streamed: no error, tokens None
openinference, incomplete, whole: no error, tokens 12
openinference, failed, streamed: no error, tokens None
traceloop, completed, streamed: no error, tokens 12
traceloop, completed, whole: no error, tokens 12
traceloop, incomplete, streamed: no error, tokens 12
traceloop, incomplete, whole: no span
traceloop, failed, streamed: no error, tokens 12
OUT
