#!/usr/bin/env bash
# @langchain/openai 1.6.0 with @langchain/core 1.4.0 and langchain 1.5.14 (npm), `createAgent` over OpenAI's Responses
# API, streamed.
#
# Expected: a response that fails in its middle (`response.failed`, OpenAI's API reference) ends the run with an error,
# as an error in a stream of chat completions does, and as the same package does for a failed response in one piece. A
# call whose arguments break off is in `invalid_tool_calls`.
# Seen: the event is ignored. The arguments so far, closed by the parser, are a valid call, and the agent runs it: here
# `rm -r /srv/data` where the model was about to write more of the path. Nothing says that the response has failed.
#
# Output seen on 2026-11-30:
#   chat, streamed: ran nothing; APIError: The server had an error.
#   responses, whole: ran nothing; Error: The server had an error.
#   responses, streamed: ran rm -r /srv/data; said 'Done.'
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" \
  @langchain/openai@1.6.0 @langchain/core@1.4.0 langchain@1.5.14 zod@4.6.7
cat > "$work/agent.mjs" <<'JS'
import { createServer } from "node:http";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";

const CUT = '{"command": "rm -r /srv/data';
const error = { code: "server_error", message: "The server had an error." };
let asked = 0;
const fields = {
  object: "response", created_at: 1, model: "m", status: "in_progress", output: [], error: null,
  incomplete_details: null, instructions: null, metadata: {}, parallel_tool_calls: true, temperature: 1,
  tool_choice: "auto", tools: [], top_p: 1, usage: null,
};
const begun = () => ({ id: `resp_${asked}`, ...fields });
const failed = () => ({ ...begun(), status: "failed", error });

function* responses(isFirst) {
  const response = begun();
  yield { type: "response.created", response };
  if (isFirst) {
    const item = { id: "fc_1", type: "function_call", call_id: "call_1", name: "shell", arguments: "", status: "in_progress" };
    yield { type: "response.output_item.added", output_index: 0, item };
    yield { type: "response.function_call_arguments.delta", item_id: "fc_1", output_index: 0, delta: CUT };
    yield { type: "response.failed", response: failed() };
    return;
  }
  const item = { id: "msg_1", type: "message", role: "assistant", status: "in_progress", content: [] };
  const place = { item_id: "msg_1", output_index: 0, content_index: 0 };
  const part = (text) => ({ type: "output_text", text, annotations: [], logprobs: [] });
  const done = { ...item, status: "completed", content: [part("Done.")] };
  yield { type: "response.output_item.added", output_index: 0, item };
  yield { type: "response.content_part.added", ...place, part: part("") };
  yield { type: "response.output_text.delta", ...place, delta: "Done.", logprobs: [] };
  yield { type: "response.output_text.done", ...place, text: "Done.", logprobs: [] };
  yield { type: "response.content_part.done", ...place, part: part("Done.") };
  yield { type: "response.output_item.done", output_index: 0, item: done };
  const usage = { input_tokens: 9, input_tokens_details: { cached_tokens: 0 }, output_tokens: 3,
    output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 12 };
  yield { type: "response.completed", response: { ...response, status: "completed", output: [done], usage } };
}

function* chat() {
  const called = { index: 0, id: "call_1", type: "function", function: { name: "shell", arguments: CUT } };
  const choice = { index: 0, delta: { role: "assistant", tool_calls: [called] }, finish_reason: null };
  yield { id: "c", object: "chat.completion.chunk", created: 1, model: "m", choices: [choice] };
  yield { error: { message: error.message, type: "server_error", param: null, code: null } };
}

const server = createServer(async (request, answer) => {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  asked += 1;
  if (!body.stream) {
    answer.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(failed()));
    return;
  }
  answer.writeHead(200, { "content-type": "text/event-stream" });
  const isFirst = !(body.input ?? []).some((one) => one.type === "function_call_output");
  let number = 0;
  for (const event of body.messages ? chat() : responses(isFirst)) {
    if (event.type) answer.write(`event: ${event.type}\n`);
    answer.write(`data: ${JSON.stringify(event.type ? { ...event, sequence_number: number++ } : event)}\n\n`);
  }
  answer.end();
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const configuration = { baseURL: `http://127.0.0.1:${server.address().port}/v1` };

for (const [api, isStreamed] of [["chat", true], ["responses", false], ["responses", true]]) {
  const ran = [];
  const shell = tool(({ command }) => { ran.push(command); return "ok"; },
    { name: "shell", description: "Runs a command", schema: z.object({ command: z.string() }) });
  const model = new ChatOpenAI({ model: "m", apiKey: "k", maxRetries: 0, configuration, streaming: isStreamed,
    useResponsesApi: api === "responses" });
  let end;
  try {
    const { messages } = await createAgent({ model, tools: [shell] }).invoke({ messages: [{ role: "user", content: "hi" }] });
    end = `said '${messages.at(-1).text}'`;
  } catch (thrown) {
    end = `${thrown.constructor.name}: ${thrown.message}`;
  }
  console.log(`${api}, ${isStreamed ? "streamed" : "whole"}: ran ${ran.join(", ") || "nothing"}; ${end}`);
}
server.close();
server.closeAllConnections();
JS
node "$work/agent.mjs" 2>/dev/null | tee "$work/out"
diff "$work/out" - <<'OUT'
chat, streamed: ran nothing; APIError: The server had an error.
responses, whole: ran nothing; Error: The server had an error.
responses, streamed: ran rm -r /srv/data; said 'Done.'
OUT
