#!/usr/bin/env bash
# langchain-openai 1.7.4 (PyPI) and @langchain/openai 1.6.0 (npm), `ChatOpenAI` with chat completions.
#
# Expected: a refusal (`message.refusal`, in a stream `delta.refusal`; OpenAI's API reference) is in the message, as
# `additional_kwargs["refusal"]`: there langchain-openai has it of an answer in one piece, and the npm package of a
# response of the Responses API.
# Seen: streamed in Python, and in both ways in JavaScript, it is nowhere. The message is empty with `finish_reason`
# "stop", so an agent ends its turn well and without a word, and no one learns why. LiteLLM loses it in streams, too.
#
# Output seen on 2026-11-30:
#   python, whole: content '', refusal 'I cannot.', stop
#   python, streamed: content '', refusal None, stop
#   node, whole: content '', refusal None, stop
#   node, streamed: content '', refusal None, stop
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check langchain-openai==1.7.4 langchain-core==1.8.3
npm install --silent --no-audit --no-fund --prefix "$work" @langchain/openai@1.6.0 @langchain/core@1.4.0
cat > "$work/chat.mjs" <<'JS'
import { ChatOpenAI } from "@langchain/openai";

const chat = new ChatOpenAI({ model: "m", apiKey: "k", configuration: { baseURL: process.argv[2] } });
const whole = await chat.invoke("hi");
let joined;
for await (const chunk of await chat.stream("hi")) joined = joined ? joined.concat(chunk) : chunk;
for (const [way, message] of [["whole", whole], ["streamed", joined]]) {
  const refusal = message.additional_kwargs.refusal;
  const shown = refusal ? `'${refusal}'` : "None";
  console.log(`node, ${way}: content '${message.content}', refusal ${shown}, ${message.response_metadata.finish_reason}`);
}
JS
"$work/venv/bin/python" -W ignore - "$work/chat.mjs" 2>/dev/null <<'PY' | tee "$work/out"
import json, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        base = {"id": "c", "created": 1, "model": "m"}
        self.send_response(200)
        if body.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            first = {"role": "assistant", "content": None, "refusal": ""}
            for delta, end in ((first, None), ({"refusal": "I "}, None), ({"refusal": "cannot."}, None), ({}, "stop")):
                choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
                chunk = {**base, "object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            return
        message = {"role": "assistant", "content": None, "refusal": "I cannot."}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        answer = json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="m", base_url=url, api_key="k")
joined, *rest = chat.stream("hi")
for chunk in rest:
    joined += chunk
for way, message in (("whole", chat.invoke("hi")), ("streamed", joined)):
    refusal, end = message.additional_kwargs.get("refusal"), message.response_metadata["finish_reason"]
    print(f"python, {way}: content {message.content!r}, refusal {refusal!r}, {end}", flush=True)
subprocess.run(["node", sys.argv[1], url], check=True)
PY
diff "$work/out" - <<'OUT'
python, whole: content '', refusal 'I cannot.', stop
python, streamed: content '', refusal None, stop
node, whole: content '', refusal None, stop
node, streamed: content '', refusal None, stop
OUT
