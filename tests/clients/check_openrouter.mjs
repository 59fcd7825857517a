// OpenRouter's SDK against a gateway: `node check_openrouter.mjs FOLDER URL KEY`; prints JSON. It
// checks each answer by types of its own, which want more than OpenAI's API demands.
// test_frameworks.py judges.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, serverURL, apiKey] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const { OpenRouter } = await import(pathToFileURL(load.resolve("@openrouter/sdk")).href);
const client = new OpenRouter({ serverURL, apiKey });

const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
};
const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const hello = [{ role: "user", content: "Hello" }];
const asked = [{ role: "user", content: "What is the weather in Athens?" }];
const ann = [{ role: "user", content: "Ann is 40." }];

const chat = (messages, fields = {}) =>
  client.chat.send({ chatRequest: { model: "alpha", messages, ...fields } });
const said = async (...given) => (await chat(...given)).choices[0].message;

let streamed = "";
for await (const chunk of await chat(hello, { stream: true })) streamed += chunk.choices[0]?.delta.content ?? "";
const called = await said(asked, { tools });
const [call] = called.toolCalls;
const result = { role: "tool", toolCallId: call.id, content: "Athens: sunny" };
const responseFormat = { type: "json_schema", jsonSchema: { name: "person", strict: true, schema: person } };
const seen = {
  chat: (await said(hello)).content,
  stream: streamed,
  tools: {
    call: [call.function.name, JSON.parse(call.function.arguments)],
    text: (await said([...asked, called, result], { tools })).content,
  },
  structured: JSON.parse((await said(ann, { model: "tiny", responseFormat, maxTokens: 200 })).content),
};
console.log(JSON.stringify(seen));
