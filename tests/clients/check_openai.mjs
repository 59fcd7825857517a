// What the official Node client sees of a gateway, as JSON on stdout; the same checks as
// check_openai.py makes. It observes; test_clients.py judges.

import { createRequire } from "node:module";

const [folder, baseURL, apiKey] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai");

const PATIENCE_MS = 60_000;
const LONG_PROMPT = "word and number 7 ".repeat(600);

const client = (options = {}) => new OpenAI({ baseURL, apiKey, maxRetries: 0, ...options });
const said = (content) => [{ role: "user", content }];

const weatherTool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer" } },
      required: ["city", "days"],
    },
  },
};

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const joined = (chunks) => chunks.map((c) => c.choices[0]?.delta.content ?? "").join("");

async function models() {
  const ids = (await collect(await client().models.list())).map((model) => model.id);
  return { ids, one: (await client().models.retrieve("alpha")).id };
}

async function chat() {
  const answer = await client().chat.completions.create({ model: "alpha", messages: said("Hi") });
  const [choice] = answer.choices;
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  return {
    text: choice.message.content,
    finish: choice.finish_reason,
    adds_up: prompt_tokens + completion_tokens === total_tokens,
  };
}

async function stream() {
  const body = { model: "alpha", messages: said("Hi"), stream: true };
  const options = { stream_options: { include_usage: true } };
  const chunks = await collect(await client().chat.completions.create({ ...body, ...options }));
  const choices = chunks.flatMap((chunk) => chunk.choices);
  const last = chunks.at(-1);
  return {
    text: joined(chunks),
    finish: choices.at(-1).finish_reason,
    in_pieces: choices.length > 4,
    usage_is_last: Boolean(last.usage) && last.choices.length === 0,
    one_id: new Set(chunks.map((chunk) => chunk.id)).size === 1,
  };
}

async function stream_helper() {
  const events = client().chat.completions.stream({ model: "alpha", messages: said("Hi") });
  let tells_the_end = false;
  events.on("content.done", () => (tells_the_end = true));
  const final = await events.finalChatCompletion();
  const [choice] = final.choices;
  return { text: choice.message.content, finish: choice.finish_reason, tells_the_end };
}

async function reasoning() {
  const body = { model: "alpha", messages: said("Think") };
  const whole = await client().chat.completions.create(body);
  const chunks = await collect(await client().chat.completions.create({ ...body, stream: true }));
  const { content, reasoning_content } = whole.choices[0].message;
  const streamed = chunks.map((c) => c.choices[0].delta.reasoning_content ?? "").join("");
  return { text: content, thought: reasoning_content, streamed };
}

function callsOf({ finish_reason, message }) {
  const calls = message.tool_calls;
  return {
    finish: finish_reason,
    calls: calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    ids_differ: new Set(calls.map((call) => call.id)).size === calls.length,
  };
}

async function tools() {
  const messages = said("The weather in Athens?");
  const body = { model: "alpha", messages, tools: [weatherTool] };
  return callsOf((await client().chat.completions.create(body)).choices[0]);
}

const TWO = { model: "alpha", messages: said("Weather of Athens and Paris?"), tools: [weatherTool] };

async function tools_stream() {
  const calls = [];
  let pieces = 0;
  let finish = null;
  for await (const chunk of await client().chat.completions.create({ ...TWO, stream: true })) {
    const [choice] = chunk.choices;
    finish = choice.finish_reason ?? finish;
    for (const delta of choice.delta.tool_calls ?? []) {
      pieces += 1;
      const call = (calls[delta.index] ??= { id: "", name: "", arguments: "" });
      call.id += delta.id ?? "";
      call.name += delta.function.name ?? "";
      call.arguments += delta.function.arguments ?? "";
    }
  }
  return {
    finish,
    calls: calls.map((call) => [call.name, JSON.parse(call.arguments)]),
    ids_differ: new Set(calls.map((call) => call.id)).size === calls.length,
    in_pieces: pieces > 4,
  };
}

async function tools_helper() {
  const events = client().chat.completions.stream(TWO);
  const parsed = [];
  events.on("tool_calls.function.arguments.done", (done) => parsed.push(JSON.parse(done.arguments)));
  const final = await events.finalChatCompletion();
  return { ...callsOf(final.choices[0]), parsed };
}

async function responses() {
  const api = client().responses;
  const { name, parameters } = weatherTool.function;
  const tools = [{ type: "function", name, parameters, strict: false }];
  const whole = await api.create({ model: "alpha", input: "Hi" });
  const events = await collect(await api.create({ model: "alpha", input: "Hi", stream: true }));
  const final = await api.stream({ model: "alpha", input: "Hi" }).finalResponse();
  const asked = said("The weather in Athens?");
  const called = await api.create({ model: "alpha", input: asked, tools });
  const call = called.output.at(-1);
  const result = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
  const input = [...asked, ...called.output, result];
  const answer = await api.create({ model: "alpha", input, tools });
  const [thought] = (await api.create({ model: "alpha", input: "Think" })).output;
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  const { input_tokens, output_tokens, total_tokens } = whole.usage;
  return {
    texts: [whole.output_text, deltas.map((event) => event.delta).join(""), final.output_text],
    ends: [events[0].type, events.at(-1).type],
    numbered: events.every((event, at) => event.sequence_number === at),
    call: [call.name, JSON.parse(call.arguments)],
    text: answer.output_text,
    thought: thought.content[0].text,
    adds_up: input_tokens + output_tokens === total_tokens,
  };
}

async function round_trip() {
  const tool = structuredClone(weatherTool);
  tool.function.function = () => ({ sky: "clear" });
  tool.function.parse = JSON.parse;
  const messages = said("The weather in Athens?");
  const runner = client().chat.completions.runTools({ model: "alpha", messages, tools: [tool] });
  return { text: await runner.finalContent() };
}

async function completions() {
  const body = { model: "alpha", prompt: "Once upon", max_tokens: 50 };
  const text = (await client().completions.create(body)).choices[0].text;
  const chunks = await collect(await client().completions.create({ ...body, stream: true }));
  return { text, same: chunks.map((c) => c.choices[0]?.text ?? "").join("") === text };
}

async function caught(call) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const hasRetryAfter = error.headers?.has("retry-after") ?? false;
    return [error.constructor.name, error.status, error.code ?? null, hasRetryAfter];
  }
  return "no error";
}

async function errors() {
  const ask = (fields) => () =>
    client().chat.completions.create({ model: "alpha", messages: said("Hi"), ...fields });
  return {
    "wrong key": await caught(() => client({ apiKey: "sk-wrong" }).models.list()),
    "unknown model": await caught(ask({ model: "gamma" })),
    "bad body": await caught(ask({ n: 0 })),
    "over the window": await caught(ask({ model: "narrow", messages: said(LONG_PROMPT) })),
    "nobody serves it": await caught(ask({ model: "nobody" })),
    "no such endpoint": await caught(() => client().images.generate({ prompt: "x" })),
  };
}

// An engine that fails for good in mid-answer: what came, and what was raised.
async function broken_stream() {
  let text = "";
  try {
    const body = { model: "alpha", messages: said("break off"), stream: true };
    for await (const chunk of await client().chat.completions.create(body)) {
      text += chunk.choices[0].delta.content ?? "";
    }
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    return { text, raised: [error.constructor.name, error.error?.message ?? error.message] };
  }
  return { text, raised: null };
}

// Streamed: an answer in one piece may be an agent's side call, for which there is room.
async function askNarrow(api) {
  const body = { model: "narrow", messages: said("Hi"), stream: true };
  return joined(await collect(await api.chat.completions.create(body)));
}

async function takePlace() {
  const body = { model: "narrow", messages: said("never stop"), stream: true };
  const place = await client().chat.completions.create(body);
  const chunks = place[Symbol.asyncIterator]();
  while (!(await chunks.next()).value.choices[0].delta.content);
  return place;
}

// One place and one waiting place: of two who come then one waits and one is refused; a client
// that retries has its answer once there is room.
async function busy() {
  const place = await takePlace();
  const both = [1, 2].map((number) =>
    caught(() => askNarrow(client())).then((told) => ({ number, told })),
  );
  const refused = await Promise.race(both);
  const queued = both[2 - refused.number];
  let retried;
  await new Promise((resolve) => {
    const watching = async (...request) => {
      const response = await fetch(...request);
      if (response.status === 429) resolve();
      return response;
    };
    retried = askNarrow(client({ maxRetries: 20, fetch: watching }));
  });
  place.controller.abort();
  return { refused: refused.told, queued: (await queued).told, retried: await retried };
}

// A stream that is left frees the only place of its worker; so does a request that is aborted.
async function cancelled() {
  const place = await takePlace();
  place.controller.abort();
  const afterLeaving = await askNarrow(client({ timeout: PATIENCE_MS }));
  const abort = new AbortController();
  const body = { model: "narrow", messages: said("never stop") };
  const endless = client().chat.completions.create(body, { signal: abort.signal });
  setTimeout(() => abort.abort(), 500);
  await endless.catch(() => undefined);
  const afterCancelling = await askNarrow(client({ timeout: PATIENCE_MS }));
  return { "after leaving": afterLeaving, "after cancelling": afterCancelling };
}

const checks = { models, chat, stream, stream_helper, reasoning, tools, tools_stream };
const more = { tools_helper, responses, round_trip, completions, errors, broken_stream, busy, cancelled };
const results = {};
for (const [name, check] of Object.entries({ ...checks, ...more })) {
  console.error(name);
  results[name] = await check();
}
console.log(JSON.stringify(results));
