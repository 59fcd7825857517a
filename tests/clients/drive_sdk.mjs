// A turn with a tool by an SDK's own streams and defaults: node drive_sdk.mjs FOLDER NAME URL MODEL PROMPT.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, name, url, model, prompt] = process.argv.slice(2);
const require = createRequire(`${folder}/node_modules/`);
const load = async (path) => import(pathToFileURL(require.resolve(path)).href);
const parameters = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const note = (given) => readFileSync(`${given}.txt`, "utf8");

async function openai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: url, apiKey: "sk-none" });
  const tools = [{ type: "function", function: { name: "read_note", parameters } }];
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const stream = client.chat.completions.stream({ model, messages, tools });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const content = note(JSON.parse(call.function.arguments).name);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function aiSdk() {
  const { streamText, tool, jsonSchema, stepCountIs } = await load("ai");
  const { createOpenAI } = await load("@ai-sdk/openai");
  const provider = createOpenAI({ baseURL: url, apiKey: "sk-none" });
  let failed;
  const result = streamText({
    model: provider.chat(model),
    prompt,
    tools: { read_note: tool({ inputSchema: jsonSchema(parameters), execute: ({ name }) => note(name) }) },
    stopWhen: stepCountIs(5),
    onError: ({ error }) => { failed = error; },
  });
  let text = "";
  for await (const part of result.textStream) text += part;
  if (failed) throw failed;
  return text;
}

try {
  console.log(await { "openai-node": openai, "ai-sdk": aiSdk }[name]());
} catch (error) {
  console.error(String(error?.message ?? error), error?.cause ? String(error.cause) : "");
  process.exit(1);
}
