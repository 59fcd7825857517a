// The Vercel AI SDK against a gateway: `node check_ai_sdk.mjs FOLDER URL KEY`; prints JSON. It
// observes; test_frameworks.py judges.

import { createRequire } from "node:module";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const { generateObject, generateText, stepCountIs, streamText, tool } = load("ai");
const { createOpenAI } = load("@ai-sdk/openai");
const { z } = load("zod");

const bodies = [];
const fetch = (url, options) => {
  bodies.push(JSON.parse(options.body));
  return globalThis.fetch(url, options);
};
const openai = createOpenAI({ baseURL, apiKey, fetch });
const question = { role: "user", content: "What is the weather in Athens?" };
const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
const tools = {
  get_weather: tool({
    description: "Get the weather of a city.",
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async ({ city, days }) => `${city}: sunny for ${days} days`,
  }),
};

const whole = async (model) => (await generateText({ model, prompt: "Hello" })).text;

async function streamed(model) {
  let text = "";
  for await (const part of streamText({ model, prompt: "Hello" }).textStream) text += part;
  return text;
}

async function toolTurn(model) {
  const turn = await generateText({ model, tools, messages: [question], stopWhen: stepCountIs(3) });
  const [call] = turn.steps[0].toolCalls;
  return { call: [call.toolName, call.input], text: turn.text };
}

// The answer to a second question is made from a history whose texts are named, not sent.
async function secondQuestion(model) {
  const first = await generateText({ model, messages: [{ role: "user", content: "Hello" }] });
  const said = { role: "user", content: "Hello again" };
  const messages = [{ role: "user", content: "Hello" }, ...first.response.messages, said];
  const { text } = await generateText({ model, messages });
  return { text, kinds: bodies.at(-1).input.map((item) => item.type ?? item.role) };
}

async function object(model) {
  return (await generateObject({ model, schema: person, prompt: "Ann is 40.", maxOutputTokens: 200 }))
    .object;
}

const chat = openai.chat("alpha");
const responses = openai("alpha");
const seen = {
  chat: await whole(chat),
  stream: await streamed(chat),
  tools: await toolTurn(chat),
  structured: await object(openai.chat("tiny")),
  responses: await whole(responses),
  "responses stream": await streamed(responses),
  "responses tools": await toolTurn(responses),
  "responses structured": await object(openai("tiny")),
  "second question": await secondQuestion(responses),
};
console.log(JSON.stringify(seen));
