#!/usr/bin/env bash
# ag2 1.2.1 with openai 3.57.0 (PyPI), `Agent` over OpenAI's Responses API beside chat completions.
#
# Expected: an answer that fails ends `agent.ask` with an exception, as an error in a stream of chat completions does.
# By the Responses API a failed response has the `status` "failed" and an `error`, in its last event `response.failed`
# or in the body (OpenAI's API reference).
# Seen: nothing is raised, streamed or not. Half a text is the reply, and is sent back as what the assistant said; of a
# response that failed without a text the reply is None. A pipeline goes on with it as with any other answer.
#
# Output seen on 2026-11-30:
#   chat, streamed: APIError
#   responses, streamed: replied 'Delete all but the'; then sent assistant 'Delete all but the'
#   responses, whole: replied None; then sent nothing of the assistant
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check "ag2[openai]==1.2.1" openai==3.57.0
"$work/venv/bin/python" -W ignore - 2>/dev/null <<'PY' | tee "$work/out"
import asyncio, json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HALF = "Delete all but the"
ERROR = {"code": "server_error", "message": "The server had an error."}
RESPONSE = {"object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": [],
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
            "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": None}
asked = []

def response(**fields):
    return {"id": f"resp_{len(asked)}", **RESPONSE, **fields}

def responses():
    item_id = f"msg_{len(asked)}"
    item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    yield {"type": "response.created", "response": response()}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **place, "part": part}
    yield {"type": "response.output_text.delta", **place, "delta": HALF, "logprobs": []}
    yield {"type": "response.failed", "response": response(status="failed", error=ERROR)}

def chat():
    delta = {"role": "assistant", "content": HALF}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    yield {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    yield {"error": {"message": ERROR["message"], "type": "server_error", "param": None, "code": None}}

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(body)
        self.send_response(200)
        if body.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for number, event in enumerate((chat if "messages" in body else responses)()):
                if "messages" not in body:
                    event["sequence_number"] = number
                    self.wfile.write(f"event: {event['type']}\n".encode())
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            return
        answer = json.dumps(response(status="failed", error=ERROR)).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()

from ag2 import Agent
from ag2.config import OpenAIConfig, OpenAIResponsesConfig

def said(part):
    return part if isinstance(part, str) else "".join(one["text"] for one in part)

async def ask(name, kind, streaming):
    place = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "k", "max_retries": 0}
    agent = Agent("agent", config=kind(model="m", streaming=streaming, **place))
    try:
        reply = await agent.ask("hi")
    except Exception as error:
        print(f"{name}: {type(error).__name__}")
        return
    await reply.ask("again")
    told = [repr(said(one["content"])) for one in asked[-1]["input"] if one.get("role") == "assistant"]
    sent = f"assistant {told[0]}" if told else "nothing of the assistant"
    print(f"{name}: replied {reply.body!r}; then sent {sent}")

asyncio.run(ask("chat, streamed", OpenAIConfig, True))
asyncio.run(ask("responses, streamed", OpenAIResponsesConfig, True))
asyncio.run(ask("responses, whole", OpenAIResponsesConfig, False))
PY
diff "$work/out" - <<'OUT'
chat, streamed: APIError
responses, streamed: replied 'Delete all but the'; then sent assistant 'Delete all but the'
responses, whole: replied None; then sent nothing of the assistant
OUT
