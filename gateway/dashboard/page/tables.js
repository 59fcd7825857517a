// The rows of the overview: figures, workers, requests, models, money, clients, log. Each function
// gets the newest overview and writes what has changed.

const LOG_ROWS = 200, RECENT_ROWS = 20;
const PHASES = { prefill: "prefill", decode: "answering", cloud: "cloud", preparing: "preparing", detached: "client left", ended: "" };

const row = (...cells) => make("tr", { role: "row" }, ...cells);
const cell = (name = "", label = "") =>
  make("td", { role: "cell", ...(name && { class: name }), ...(label && { "data-label": label }) });
const emptyRow = (columns, text) => () => {
  const node = make("tr", { class: "empty", role: "row" }, make("td", { role: "cell", colspan: columns }, text));
  return node;
};
const emptyItem = (text) => () => make("li", { class: "empty" }, text);

/** A dot and a word; `node` is made once. */
function state(node, name, text) {
  const element = node ?? make("span", { class: "state" }, make("i", { class: "dot" }), make("span", { class: "cut" }));
  mark(element, "class", `state ${name}`);
  say(element.lastChild, text);
  return element;
}

function showCondition(now) {
  const node = $("condition");
  mark(node, "class", `condition ${now.condition}`);
  say(node.lastElementChild, now.words);
  const replaced = now.replaced ? ` (${now.replaced} replaced)` : "";
  const process = now.processes > 1 ? ` · ${now.processes} processes${replaced}` : now.process == null ? "" : ` · process ${now.process}`;
  say($("meta"), `${now.version}${process} · up ${duration(1000 * (now.unix_time - now.started_at))}`);
}

function showFigures(now) {
  const { totals, savings, currency } = now;
  const saved = savings.filter((one) => one.month != null);
  const sum = (field) => saved.reduce((all, one) => all + one[field], 0);
  const limit = now.limits.map((one) => [one.spent / Math.max(1, one.limit), one]).sort((a, b) => b[0] - a[0])[0]?.[1];
  const figures = [
    ["Answers", rate(totals.tokens_per_s), "tokens/s", `${count(totals.output_tokens)} tokens since the start`],
    ["First token", totals.first_p50_ms == null ? NONE : duration(totals.first_p50_ms), "", totals.first_p95_ms == null ? "no request yet" : `95 % within ${duration(totals.first_p95_ms)}`],
    ["In flight", count(totals.open), totals.queued ? `${count(totals.queued)} queued` : "", `${count(totals.ended)} ended, ${count(totals.failed)} failed`],
    ["From the cache", totals.prompt_tokens ? percent(share(totals.cached_tokens, totals.prompt_tokens)) : NONE, "", `of ${count(totals.prompt_tokens)} prompt tokens`],
    ["In the cloud", totals.ended ? percent(share(totals.by_cloud, totals.ended)) : NONE, "of requests", limit ? `${amount(limit.spent, currency)} of ${amount(limit.limit, currency)} ${limit.period}` : "no spending limit"],
    ["Saved this month", saved.length ? amount(sum("month"), currency) : savings.length && now.providers.length ? UNKNOWN : NONE, "", saved.length ? `${amount(sum("day"), currency)} today` : "no price of a provider is known"],
  ];
  keep($("figures"), figures, (one) => one[0],
    (one) => make("div", {}, make("dt", {}, one[0]), make("dd", {}, make("span"), make("small")), make("dd", { class: "sub" })),
    (node, one) => {
      const [, value, sub] = node.children;
      say(value.firstChild, one[1]);
      say(value.lastChild, one[2]);
      say(sub, one[3]);
    });
}

const STATES = { ready: "ready", unproven: "no answers", draining: "draining", starting: "starting", down: "down", asleep: "asleep", "falling asleep": "falling asleep", waking: "waking" };

function showWorkers(now) {
  const ready = now.workers.filter((one) => one.state === "ready").length;
  say($("workers-note"), now.workers.length ? `${ready} of ${now.workers.length} ready` : "");
  keep($("workers"), now.workers, (one) => one.name, newWorker, showWorker, emptyRow(7, "No worker has dialled in yet."));
}

function newWorker() {
  const load = () => make("div", { class: "load" }, bar(), make("b"));
  const who = cell();
  who.append(make("div", { class: "who" }, make("strong", {}), make("span", { class: "soft cut" })), make("span", { class: "tiers soft cut", hidden: "" }), make("span", { class: "fault", hidden: "" }));
  const where = cell();
  where.append(state());
  const [sequences, memory] = [cell(), cell()];
  sequences.append(load());
  memory.append(load());
  return row(who, where, sequences, memory, cell("n", "Tokens/s"), cell("n", "Step"), cell("n", "Prefill"));
}

function showWorker(node, one) {
  const [who, where, sequences, memory, speed, step, prefill] = node.children;
  const [name, about] = who.firstChild.children;
  const what = [one.models.join(", "), one.device].filter(Boolean).join(" · ");
  say(name, one.name);
  say(about, what);
  mark(who.firstChild, "title", `${one.name} ${what}`);
  say(who.lastChild, one.fault);
  who.lastChild.hidden = !one.fault;
  const isStarting = (one.state === "starting" || one.state === "waking") && one.phase;
  const words = isStarting ? `${one.phase} ${percent(one.fraction)}` : one.is_open ? "asked last" : STATES[one.state];
  state(where.firstChild, one.is_open && one.state === "ready" ? "warning" : one.state, words);
  const isUp = one.places > 0;
  const used = isUp ? share(one.running, one.places) : isStarting ? one.fraction : 0;
  const waits = one.waiting ? ` +${one.waiting}` : "";
  showLoad(sequences.firstChild, used, 0, isUp ? `${one.running} of ${one.places}${waits}` : isStarting ? "starting" : NONE);
  const held = share(one.held_blocks, one.num_blocks);
  const onCard = one.cached_blocks - one.host_blocks;
  const cached = Math.min(1, share(Math.max(one.held_blocks, onCard), one.num_blocks));
  showLoad(memory.firstChild, held, cached, one.num_blocks ? percent(held) : NONE);
  showTiers(who.children[1], one);
  mark(memory.firstChild, "title", one.num_blocks ? `${one.held_blocks} of ${one.num_blocks} blocks held, ${onCard} cached, ${count(one.kv_tokens)} tokens in all; ${one.evicted_blocks} evicted, ${count(one.recomputed_tokens)} tokens computed again` : "");
  say(speed, isUp ? rate(one.tokens_per_s) : NONE);
  say(step, one.step_ms ? duration(one.step_ms) : NONE);
  say(prefill, one.prefill_tokens_per_s ? `${count(one.prefill_tokens_per_s)}/s` : NONE);
}

/** What share of the prompts either tier of a cache with a host's memory had. */
function showTiers(node, one) {
  node.hidden = !one.host_bytes;
  if (node.hidden) return;
  const [card, host] = [one.hit_tokens - one.loaded_tokens, one.loaded_tokens].map((found) => percent(share(found, one.prompt_tokens)));
  say(node, `hits ${card} card, ${host} host, ${percent(share(one.host_held_bytes, one.host_bytes))} full`);
  const speed = one.load_bytes_per_s ? ` at ${bytes(one.load_bytes_per_s)}/s` : "";
  mark(node, "title", `Of ${count(one.prompt_tokens)} tokens of prompts ${count(one.hit_tokens)} were found, ${count(one.loaded_tokens)} of them on the host; ${bytes(one.host_held_bytes)} of ${bytes(one.host_bytes)} there hold something, ${bytes(one.stored_bytes)} were stored, ${bytes(one.loaded_bytes)} loaded${speed}; ${count(one.host_blocks)} blocks are on the host alone`);
}

function showLoad(node, first, second, words) {
  bar(node.firstChild, first, second);
  mark(node.firstChild, "class", `bar${first >= 0.98 ? " full" : first >= 0.85 ? " high" : ""}`);
  say(node.lastChild, words);
}

function showRequests(now) {
  const wanted = $("filter").value.trim().toLowerCase();
  const fits = (one) => !wanted || [one.id, one.model, one.key, one.client, one.server, one.phase, one.api].some((word) => word.toLowerCase().includes(wanted));
  const { open, queued } = now.totals;
  const more = open - now.requests.length;
  say($("requests-note"), [open && `${count(open)} open`, queued && `${count(queued)} queued`, more > 0 && `the oldest ${now.requests.length} are shown`].filter(Boolean).join(", "));
  keep($("requests"), now.requests.filter(fits), (one) => one.id, newRequest, showRequest, emptyRow(9, "No request is open."));
  keep($("recent"), now.recent.filter(fits).slice(0, RECENT_ROWS), (one) => one.id, newRequest, showRequest, emptyRow(9, "None yet."));
}

function newRequest(one) {
  const id = cell();
  id.append(make("a", { class: "id", href: `#/requests/${encodeURIComponent(one.id)}` }, short(one.id)), " ", make("span", { class: "soft" }));
  const phase = cell();
  phase.append(make("span", { class: "chip" }));
  return row(id, cell(), phase, cell(), cell("n", "Prompt"), cell("n", "Answer"), cell("n", "Tokens/s"), cell("n", "First"), cell("n", "Time"));
}

const short = (id) => id.replace(/^(.*_|.*-)?(.{8}).*$/, "$2");

function showRequest(node, one) {
  const [id, client, phase, server, prompt, answer, speed, first, time] = node.children;
  say(id.lastChild, one.model || one.api);
  say(client, [one.client, one.key].filter(Boolean).join(" · "));
  showPhase(phase.firstChild, one);
  say(server, one.server || NONE);
  say(prompt, one.prompt_tokens ? `${count(one.prompt_tokens)}, ${percent(share(one.cached_tokens, one.prompt_tokens))}` : NONE);
  say(answer, one.output_tokens ? count(one.output_tokens) : NONE);
  say(speed, one.tokens_per_s ? rate(one.tokens_per_s) : NONE);
  say(first, one.first_s == null ? NONE : duration(1000 * one.first_s));
  say(time, duration(1000 * one.age_s));
}

function showPhase(node, one) {
  const isOver = one.phase === "ended";
  const failed = isOver && one.status !== 200;
  const word = isOver
    ? failed ? (one.status === 499 ? "client left" : `${one.status} ${one.error.replaceAll("_", " ")}`.trim()) : one.is_cloud ? "cloud" : "done"
    : one.phase === "queued" ? (one.position ? `queued, ${one.position}.${one.wait_s ? `, ${Math.ceil(one.wait_s)} s` : ""}` : "queued") : PHASES[one.phase];
  const kind = failed ? (one.status === 499 ? "" : "failed") : isOver ? (one.is_cloud ? "cloud" : "ok") : one.phase;
  mark(node, "class", `chip ${kind}`);
  say(node, one.attempts > 1 && !failed ? `${word}, ${one.attempts} tries` : word);
}

function item() {
  return make("li", {}, state(), make("span", { class: "n" }), make("span", { class: "under" }));
}
function showItem(node, name, text, right, under) {
  state(node.children[0], name, text);
  say(node.children[1], right);
  say(node.children[2], under);
  node.children[2].hidden = !under;
}

function showModels(now) {
  keep($("models"), now.models, (one) => one.name, item, (node, one) => {
    const since = one.since ? ` since ${clock(new Date(1000 * one.since), false)}` : "";
    const workers = `${one.ready_workers} worker${one.ready_workers === 1 ? "" : "s"}`;
    const words = one.is_away ? `cloud${since}` : one.state === "ready" ? workers : one.state;
    const under = [
      one.queued && `${count(one.queued)} queued`,
      one.context_length && `window ${count(one.context_length)}`,
      one.providers.length && `fallback: ${one.providers.join(", ")}`,
    ].filter(Boolean).join(" · ");
    showItem(node, one.is_away ? "cloud" : one.state, one.name, words, under);
  }, emptyItem("No model is known yet."));
}

function showMoney(now) {
  const { currency } = now;
  keep($("limits"), now.limits, (one) => `${one.scope} ${one.name} ${one.period}`,
    () => make("li", {}, make("span", { class: "cut" }), make("span", { class: "n" }), bar()),
    (node, one) => {
      const [name, text, load] = node.children;
      const spent = one.limit ? one.spent / one.limit : 1;
      say(name, `${one.scope === "key" ? "key " : ""}${one.name}, ${one.period}`);
      say(text, `${amount(one.spent, currency)} of ${amount(one.limit, currency)}`);
      bar(load, spent, one.limit ? (one.spent + one.reserved) / one.limit : 1);
      mark(load, "class", `bar${spent >= 1 ? " full" : spent >= 0.8 ? " high" : ""}`);
    });
  keep($("providers"), now.providers, (one) => one.name, item, (node, one) => {
    const reserved = one.reserved ? `${amount(one.reserved, currency)} reserved` : "";
    const priced = amount(one.spent, currency);
    const spent = !one.unpriced ? priced : one.spent ? `${priced} + ${UNKNOWN}` : UNKNOWN;
    const unpriced = one.unpriced ? `${count(one.unpriced)} without a known price` : "";
    showItem(node, one.is_open ? "warning" : "ready", one.name, `${spent} since the start`, [one.is_open && "asked last", reserved, unpriced].filter(Boolean).join(" · "));
  });
  // Without any provider there is nothing to compare with.
  const savings = now.savings.filter((one) => one.month != null || now.providers.length);
  keep($("savings"), savings, (one) => one.model,
    () => make("li", {}, make("span", { class: "cut" }), make("span", { class: "n" }), make("span", { class: "under" })),
    (node, one) => {
      const [name, text, under] = node.children;
      say(name, `${one.model} saved`);
      say(text, one.month == null ? UNKNOWN : amount(one.month, currency));
      const at = one.provider ? `, at the price of ${one.provider}` : "";
      say(under, `${count(one.prompt_tokens)} in (${percent(share(one.cached_tokens, one.prompt_tokens))} cached), ${count(one.completion_tokens)} out this month${at}`);
    });
  $("money").hidden = !(now.limits.length || now.providers.length || savings.length);
}

function showClients(now) {
  keep($("clients"), now.clients.slice(0, 12), (one) => one.name,
    () => make("li", {}, make("span", { class: "cut" }), make("span", { class: "n" }), bar()),
    (node, one) => {
      const [name, text, load] = node.children;
      const hits = share(one.cached_tokens, one.prompt_tokens);
      say(name, one.name);
      say(text, `${percent(hits)} of ${count(one.prompt_tokens)}`);
      bar(load, hits);
    }, emptyItem("No prompt yet."));
}

function showConversations(now) {
  keep($("conversations"), now.conversations.slice(0, 12), (one) => `${one.key}/${one.name}`,
    () => make("li", {}, make("span", { class: "cut" }), make("span", { class: "n" }), make("span", { class: "under" })),
    (node, one) => {
      const [name, text, under] = node.children;
      const hits = share(one.cached_tokens, one.prompt_tokens);
      say(name, one.parent ? `${one.name} (of ${one.parent})` : one.name);
      say(text, `${many(one.turns, "turn")}, ${count(one.prompt_tokens + one.completion_tokens)} tokens`);
      const facts = [`${one.client}, ${percent(hits)} cached, ${many(one.tool_calls, "call")}`];
      if (one.errors) facts.push(many(one.errors, "error"));
      if (one.loop) facts.push(`loop: ${one.loop}`);
      if (one.breaks) facts.push(`broke its prefix ${many(one.breaks, "time")}: ${count(one.lost_tokens)} tokens`);
      say(under, facts.join("; "));
    }, emptyItem("No conversation yet."));
  keep($("prefixes"), now.prefixes.slice(0, 8), (one) => `${one.client}/${one.kind}/${one.place}`,
    () => make("li", {}, make("span", { class: "cut" }), make("span", { class: "n" })),
    (node, one) => {
      const [what, text] = node.children;
      say(what, `${one.client}: ${one.kind} in ${one.place}`);
      say(text, `${many(one.times, "time")}, ${count(one.lost_tokens)} tokens`);
    });
}

/** Add events, the newest on top; whatever their number, `LOG_ROWS` stay. */
function showLog({ events, num_lost }) {
  const log = $("log");
  const news = events.filter((one) => one.number > (log.last ?? 0)).slice(-LOG_ROWS);
  if (events.length) log.last = Math.max(log.last ?? 0, events.at(-1).number);
  if (num_lost) log.lost = (log.lost ?? 0) + num_lost;
  const rows = news.reverse().map((one) =>
    make("li", { class: one.level }, make("i", { class: "dot" }), make("time", { datetime: one.time }, clock(new Date(one.time))), make("span", { title: one.kind }, one.text)));
  log.prepend(...rows);
  while (log.childElementCount > LOG_ROWS) log.lastElementChild.remove();
  say($("log-note"), log.lost ? `${count(log.lost)} left out` : `${count(log.last ?? 0)} since the start`);
}
