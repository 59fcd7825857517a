#!/usr/bin/env bash
# @strands-agents/sdk 1.19.0 (npm) with openai 6.49.0, its `OpenAIModel` with `api: "chat"`.
#
# Expected: an agent runs every call of an answer, and keeps what the model said in front of them. Each delta of a chat
# completion chunk says the `index` of its call (OpenAI's API reference).
# Seen: a block ends only with the whole answer, and the next one's beginning throws its content away. Of two calls the
# last one alone is run and stands in the history; a text in front of a call is not there at all. Nothing is said, so
# the model is asked to go on as if it had never called the first tool. The package always streams. Its model for the
# Responses API keeps all of it.
#
# Output seen on 2026-11-30:
#   chat, two calls: ran beta; history: beta
#   chat, a text and a call: ran alpha; history: alpha
#   responses, two calls: ran alpha, beta; history: alpha, beta
#   responses, a text and a call: ran alpha; history: 'I look.', alpha
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.6.7
cat > "$work/agent.mjs" <<'JS'
import { createServer } from "node:http";
import { Agent, tool } from "@strands-agents/sdk";
import { OpenAIModel } from "@strands-agents/sdk/models/openai";
import { z } from "zod";

const ANSWERS = { "two calls": ["alpha", "beta"], "a text and a call": ["I look.", "alpha"] };
const isText = (part) => part.endsWith(".");

function* chat(parts) {
  let index = 0;
  const chunk = (delta, reason = null) =>
    ({ id: "c", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason: reason }] });
  yield chunk({ role: "assistant", content: "" });
  for (const part of parts) {
    if (isText(part)) {
      yield chunk({ content: part });
      continue;
    }
    yield chunk({ tool_calls: [{ index, id: `call_${part}`, type: "function", function: { name: part, arguments: "" } }] });
    for (const text of ['{"x":', "1}"]) yield chunk({ tool_calls: [{ index, function: { arguments: text } }] });
    index += 1;
  }
  yield chunk({}, index ? "tool_calls" : "stop");
}

function* responses(parts) {
  const response = { id: "resp_1", object: "response", created_at: 1, model: "m", status: "in_progress", output: [] };
  yield { type: "response.created", response };
  for (const [output_index, part] of parts.entries()) {
    const id = `item_${output_index}`;
    const at = { item_id: id, output_index };
    if (isText(part)) {
      const item = { id, type: "message", role: "assistant", status: "in_progress", content: [] };
      yield { type: "response.output_item.added", output_index, item };
      yield { type: "response.content_part.added", ...at, content_index: 0, part: { type: "output_text", text: "", annotations: [] } };
      yield { type: "response.output_text.delta", ...at, content_index: 0, delta: part };
      yield { type: "response.output_text.done", ...at, content_index: 0, text: part };
      response.output.push({ ...item, status: "completed", content: [{ type: "output_text", text: part, annotations: [] }] });
    } else {
      const item = { id, type: "function_call", call_id: `call_${part}`, name: part, arguments: "", status: "in_progress" };
      yield { type: "response.output_item.added", output_index, item };
      yield { type: "response.function_call_arguments.delta", ...at, delta: '{"x":1}' };
      yield { type: "response.function_call_arguments.done", ...at, arguments: '{"x":1}' };
      response.output.push({ ...item, status: "completed", arguments: '{"x":1}' });
    }
    yield { type: "response.output_item.done", output_index, item: response.output.at(-1) };
  }
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
  yield { type: "response.completed", response: { ...response, status: "completed", usage } };
}

let history;
const server = createServer(async (request, answer) => {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  const turns = body.messages ?? body.input;
  const called = turns.flatMap((one) => one.tool_calls ?? (one.type === "function_call" ? [one] : []));
  const said = turns.filter((one) => one.role === "assistant").flatMap((one) => [one.content].flat())
    .map((one) => one?.text ?? one).filter(Boolean);
  history = [...said.map((one) => `'${one}'`), ...called.map((one) => one.name ?? one.function.name)].join(", ");
  const parts = called.length ? ["Done."] : ANSWERS[body.model];
  answer.writeHead(200, { "content-type": "text/event-stream" });
  for (const event of (body.messages ? chat : responses)(parts)) {
    answer.write(`${event.type ? `event: ${event.type}\n` : ""}data: ${JSON.stringify(event)}\n\n`);
  }
  answer.end(body.messages ? "data: [DONE]\n\n" : "");
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;

for (const api of ["chat", "responses"]) {
  for (const modelId of Object.keys(ANSWERS)) {
    const ran = [];
    const tools = ["alpha", "beta"].map((name) =>
      tool({ name, description: name, inputSchema: z.object({ x: z.number() }), callback: () => { ran.push(name); return "ok"; } }));
    const model = new OpenAIModel({ api, modelId, apiKey: "k", clientConfig: { baseURL } });
    await new Agent({ model, tools, printer: false }).invoke("hi");
    console.log(`${api}, ${modelId}: ran ${ran.join(", ")}; history: ${history}`);
  }
}
server.close();
server.closeAllConnections();
JS
node "$work/agent.mjs" 2>/dev/null | tee "$work/out"
diff "$work/out" - <<'OUT'
chat, two calls: ran beta; history: beta
chat, a text and a call: ran alpha; history: alpha
responses, two calls: ran alpha, beta; history: alpha, beta
responses, a text and a call: ran alpha; history: 'I look.', alpha
OUT
