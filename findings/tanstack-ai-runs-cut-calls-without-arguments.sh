#!/usr/bin/env bash
# @tanstack/ai 0.58.0 with @tanstack/ai-openai 0.23.1 (npm), `openaiCompatible`, chat completions.
#
# Expected: a call whose arguments the token limit cut off (`finish_reason` "length") is no call to run: "the model
# does not always generate valid JSON ... Validate the arguments in your code before calling your function" (OpenAI's API
# reference, `tool_calls`). By the Responses API the same package ends such a run with an error.
# Seen: the arguments are replaced by `{}`, with a line on the console, and the tool is run where none of them is
# required: here a clean-up of one folder becomes one of all. In the history the model has called it so itself.
#
# Output seen on 2026-11-30:
#   chat: ran clean {}; sent back clean {}; no error
#   responses: ran nothing; error max_output_tokens
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" @tanstack/ai@0.58.0 @tanstack/ai-openai@0.23.1 zod@4.6.7
cat > "$work/agent.mjs" <<'JS'
import { createServer } from "node:http";
import { chat, toolDefinition } from "@tanstack/ai";
import { openaiCompatible } from "@tanstack/ai-openai/compatible";
import { z } from "zod";

const CUT = '{"folder": "/srv/data/ca';
const fields = {
  id: "resp_1", object: "response", created_at: 1, model: "m", status: "in_progress", output: [], error: null,
  incomplete_details: null, instructions: null, metadata: {}, parallel_tool_calls: true, temperature: 1,
  tool_choice: "auto", tools: [], top_p: 1, usage: null,
};

function* chats(isFirst) {
  const chunk = (delta, reason = null) =>
    ({ id: isFirst ? "c1" : "c2", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason: reason }] });
  if (!isFirst) {
    yield chunk({ role: "assistant", content: "Done." });
    yield chunk({}, "stop");
    return;
  }
  const called = { id: "call_1", type: "function", function: { name: "clean", arguments: "" } };
  yield chunk({ role: "assistant", content: null, tool_calls: [{ index: 0, ...called }] });
  yield chunk({ tool_calls: [{ index: 0, function: { arguments: CUT } }] });
  yield chunk({}, "length");
}

function* responses() {
  const item = { id: "fc_1", type: "function_call", call_id: "call_1", name: "clean", arguments: "", status: "in_progress" };
  const cut = { ...item, arguments: CUT, status: "incomplete" };
  yield { type: "response.created", response: fields };
  yield { type: "response.output_item.added", output_index: 0, item };
  yield { type: "response.function_call_arguments.delta", item_id: "fc_1", output_index: 0, delta: CUT };
  yield { type: "response.function_call_arguments.done", item_id: "fc_1", output_index: 0, name: "clean", arguments: CUT };
  yield { type: "response.output_item.done", output_index: 0, item: cut };
  const usage = { input_tokens: 9, input_tokens_details: { cached_tokens: 0 }, output_tokens: 3,
    output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 12 };
  const incomplete_details = { reason: "max_output_tokens" };
  yield { type: "response.incomplete", response: { ...fields, status: "incomplete", incomplete_details, output: [cut], usage } };
}

let back = "";
const server = createServer(async (request, answer) => {
  let text = "";
  for await (const piece of request) text += piece;
  const { messages } = JSON.parse(text);
  const sent = messages?.flatMap((one) => one.tool_calls ?? []) ?? [];
  if (sent.length) back = `; sent back ${sent[0].function.name} ${sent[0].function.arguments}`;
  answer.writeHead(200, { "content-type": "text/event-stream" });
  let number = 0;
  for (const event of messages ? chats(!sent.length) : responses()) {
    if (event.type) answer.write(`event: ${event.type}\n`);
    answer.write(`data: ${JSON.stringify(event.type ? { ...event, sequence_number: number++ } : event)}\n\n`);
  }
  answer.end(messages ? "data: [DONE]\n\n" : "");
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const place = { name: "local", baseURL: `http://127.0.0.1:${server.address().port}/v1`, apiKey: "k", models: ["m"] };

for (const [name, more] of [["chat", {}], ["responses", { api: "responses" }]]) {
  const ran = [];
  const clean = toolDefinition({ name: "clean", description: "Removes old files, of one folder or of all",
    inputSchema: z.object({ folder: z.string().optional() }) })
    .server((input) => { ran.push(`clean ${JSON.stringify(input)}`); return "ok"; });
  let error = "no error";
  back = "";
  const messages = [{ role: "user", content: "hi" }];
  for await (const event of chat({ adapter: openaiCompatible({ ...place, ...more })("m"), messages, tools: [clean] })) {
    if (event.type === "RUN_ERROR") error = `error ${event.message}`;
  }
  console.log(`${name}: ran ${ran.join(", ") || "nothing"}${back}; ${error}`);
}
server.close();
server.closeAllConnections();
JS
node "$work/agent.mjs" 2>/dev/null | grep -E '^(chat|responses): ' | tee "$work/out"
diff "$work/out" - <<'OUT'
chat: ran clean {}; sent back clean {}; no error
responses: ran nothing; error max_output_tokens
OUT
