#!/usr/bin/env bash
# genkit 1.42.0 with @genkit-ai/compat-oai 1.42.0 (npm), `openAICompatible` at a server that sends `reasoning_content`,
# which the package reads.
#
# Expected: `generateStream` ends with the same response as `generate`: `response.reasoning` is the thought. What the
# model says in front of a call is part of its message, and is sent back with the call's result.
# Seen: streamed, `reasoning` is the last piece of the thought alone, mostly a full stop. And an answer with calls
# keeps nothing but them: text and thought in front are lost in the response and in the history, streamed or not. So
# the next prompt is not what the model wrote, and prefix caches miss from there on.
#
# Output seen on 2026-11-30:
#   whole: reasoning 'Two and two make four.', text 'Four.'
#   streamed: reasoning ' four.', text 'Four.', pieces 'Two and two make four.'
#   whole, with a call: sent back {"content":null,"calls":["look"]}
#   streamed, with a call: sent back {"content":null,"calls":["look"]}
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
npm install --silent --no-audit --no-fund --prefix "$work" genkit@1.42.0 @genkit-ai/compat-oai@1.42.0
cat > "$work/ask.mjs" <<'JS'
import { createServer } from "node:http";
import { openAICompatible } from "@genkit-ai/compat-oai";
import { genkit, z } from "genkit";

const CALL = { id: "call_1", type: "function", function: { name: "look", arguments: '{"x":1}' } };
const THOUGHT = ["Two and ", "two make", " four."];
const last = {};

const server = createServer(async (request, answer) => {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  const before = body.messages.find((one) => one.role === "assistant");
  if (before) last.sent = { content: before.content ?? null, calls: before.tool_calls?.map((one) => one.function.name) };
  const calls = body.tools && !before ? [CALL] : undefined;
  const said = calls ? "I look." : "Four.";
  const reason = calls ? "tool_calls" : "stop";
  const head = { id: "c", created: 1, model: "m" };
  if (!body.stream) {
    const message = { role: "assistant", reasoning_content: THOUGHT.join(""), content: said, tool_calls: calls };
    answer.writeHead(200, { "content-type": "application/json" });
    answer.end(JSON.stringify({ ...head, object: "chat.completion", choices: [{ index: 0, message, finish_reason: reason }] }));
    return;
  }
  answer.writeHead(200, { "content-type": "text/event-stream" });
  const send = (delta, finish_reason = null) => answer.write(
    `data: ${JSON.stringify({ ...head, object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
  send({ role: "assistant", content: "" });
  for (const piece of THOUGHT) send({ reasoning_content: piece });
  send({ content: said });
  if (calls) send({ tool_calls: [{ index: 0, ...CALL }] });
  send({}, reason);
  answer.end("data: [DONE]\n\n");
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));

const ai = genkit({ plugins: [openAICompatible({ name: "own", apiKey: "k", baseURL: `http://127.0.0.1:${server.address().port}/v1` })] });
const look = ai.defineTool({ name: "look", description: "Looks", inputSchema: z.object({ x: z.number() }), outputSchema: z.string() },
  async () => "nothing");
const asked = { model: "own/m", prompt: "hi" };

const whole = await ai.generate(asked);
console.log(`whole: reasoning '${whole.reasoning}', text '${whole.text}'`);
const { stream, response } = ai.generateStream(asked);
let pieces = "";
for await (const chunk of stream) pieces += chunk.reasoning ?? "";
const streamed = await response;
console.log(`streamed: reasoning '${streamed.reasoning}', text '${streamed.text}', pieces '${pieces}'`);
await ai.generate({ ...asked, tools: [look] });
console.log(`whole, with a call: sent back ${JSON.stringify(last.sent)}`);
await ai.generateStream({ ...asked, tools: [look] }).response;
console.log(`streamed, with a call: sent back ${JSON.stringify(last.sent)}`);
server.close();
server.closeAllConnections();
process.exit(0);
JS
node "$work/ask.mjs" | tee "$work/out"
diff "$work/out" - <<'OUT'
whole: reasoning 'Two and two make four.', text 'Four.'
streamed: reasoning ' four.', text 'Four.', pieces 'Two and two make four.'
whole, with a call: sent back {"content":null,"calls":["look"]}
streamed, with a call: sent back {"content":null,"calls":["look"]}
OUT
