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

async function anthropic() {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "sk-none" });
  const tools = [{ name: "read_note", input_schema: parameters }];
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const message = await client.messages.stream({ model, messages, tools, max_tokens: 1024 }).finalMessage();
    const calls = message.content.filter((block) => block.type === "tool_use");
    if (!calls.length) return message.content.map((block) => block.text ?? "").join("");
    messages.push({ role: "assistant", content: message.content });
    const results = calls.map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: note(input.name) }));
    messages.push({ role: "user", content: results });
  }
}

async function openaiAgents() {
  const { Agent, OpenAIResponsesModel, run, setTracingDisabled, tool } = await load("@openai/agents");
  const { default: OpenAI } = await load("openai");
  const { z } = await load("zod");
  setTracingDisabled(true);
  const served = new OpenAIResponsesModel(new OpenAI({ baseURL: url, apiKey: "sk-none" }), model);
  const execute = async (given) => note(given.name);
  const tools = [tool({ name: "read_note", description: "Reads", parameters: z.object({ name: z.string() }), execute })];
  const result = await run(new Agent({ name: "reader", model: served, tools }), prompt, { stream: true });
  await result.completed;
  return result.finalOutput;
}

async function langchain() {
  const { ChatOpenAI } = await load("@langchain/openai");
  const { HumanMessage, ToolMessage } = await load("@langchain/core/messages");
  const { concat } = await load("@langchain/core/utils/stream");
  const tools = [{ type: "function", function: { name: "read_note", parameters } }];
  const chat = new ChatOpenAI({ model, apiKey: "sk-none", configuration: { baseURL: url } }).bindTools(tools);
  const messages = [new HumanMessage(prompt)];
  for (;;) {
    let answer;
    for await (const part of await chat.stream(messages)) answer = answer ? concat(answer, part) : part;
    if (!answer.tool_calls.length) return answer.content;
    messages.push(answer);
    for (const { id, args } of answer.tool_calls) messages.push(new ToolMessage({ tool_call_id: id, content: note(args.name) }));
  }
}

async function mastra() {
  const { Agent } = await load("@mastra/core/agent");
  const { createTool } = await load("@mastra/core/tools");
  const { z } = await load("zod");
  const execute = async ({ name }) => note(name);
  const read_note = createTool({ id: "read_note", description: "Reads", inputSchema: z.object({ name: z.string() }), execute });
  const served = { id: `herma/${model}`, url, apiKey: "sk-none" };
  const agent = new Agent({ id: "reader", name: "reader", instructions: "", model: served, tools: { read_note } });
  const result = await agent.stream(prompt, { maxSteps: 5 });
  let text = "";
  for await (const part of result.textStream) text += part;
  if (await result.error) throw await result.error;
  return text;
}

async function aiSdk(served) {
  const { streamText, tool, jsonSchema, stepCountIs } = await load("ai");
  let failed;
  const result = streamText({
    model: served,
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

async function aiOpenai() {
  const { createOpenAI } = await load("@ai-sdk/openai");
  return aiSdk(createOpenAI({ baseURL: url, apiKey: "sk-none" }).chat(model));
}

async function aiCompatible() {
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  return aiSdk(createOpenAICompatible({ name: "herma", baseURL: url, apiKey: "sk-none" })(model));
}

const DRIVERS = {
  "openai-node": openai,
  "anthropic-node": anthropic,
  "ai-sdk": aiOpenai,
  "ai-compatible": aiCompatible,
  "openai-agents": openaiAgents,
  langchain,
  mastra,
};

try {
  console.log(await DRIVERS[name]());
} catch (error) {
  console.error(String(error?.message ?? error), error?.cause ? String(error.cause) : "");
  process.exit(1);
}
