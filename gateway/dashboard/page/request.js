// The page of one request: its way in time, the servers that had it, why each was chosen.

const STAGES = { preparing: "prepared", queued: "waited for a place", prefill: "prompt computed", decode: "answered", cloud: "at the provider" };

function facts(request) {
  const speed = request.tokens_per_s ? `${rate(request.tokens_per_s)} tokens/s` : "";
  return [
    ["Model", request.model || NONE, request.api],
    ["Client", request.client, request.key ? `key ${request.key}` : "no key"],
    ["Prompt", count(request.prompt_tokens), `${percent(share(request.cached_tokens, request.prompt_tokens))} from the cache`],
    ["Answer", count(request.output_tokens), speed],
    ["First token", request.first_s == null ? NONE : duration(1000 * request.first_s), ""],
    ["Time", duration(1000 * request.age_s), `came at ${clock(new Date(1000 * request.unix_time))}`],
  ].map(([name, value, sub]) => make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "sub" }, sub)));
}

function way(spans) {
  const line = make("div", { class: "way", "aria-hidden": "true" });
  for (const span of spans) {
    const part = make("i", { class: `stage-${span.stage}` });
    part.style.flexGrow = String(Math.max(0.001, span.end_ms - span.start_ms));
    line.append(part);
  }
  const list = make("ol", { class: "stages" });
  for (const span of spans) {
    const where = span.server ? ` on ${span.server}` : "";
    list.append(make("li", {}, make("i", { class: `stage-${span.stage}` }), make("span", {}, make("b", {}, duration(span.end_ms - span.start_ms)), ` ${STAGES[span.stage]}${where}`)));
  }
  return make("section", { class: "panel" }, make("div", { class: "head" }, make("h2", {}, "Where its time went")), line, list);
}

function candidates(attempt, promptTokens) {
  const loads = attempt.candidates.some((one) => one.host_tokens);
  const names = ["Worker", "Prompt cached", "Others there", "Wait", ...(loads ? ["Load"] : []), "Prefill", "Delay for others", "Cost"];
  const head = make("tr", { role: "row" }, ...names.map((name, at) => make("th", { scope: "col", role: "columnheader", ...(at > 1 && { class: "n" }) }, name)));
  const body = make("tbody", { role: "rowgroup" });
  for (const one of [...attempt.candidates].sort((a, b) => a.cost_ms - b.cost_ms)) {
    const values = [String(one.running), duration(one.wait_ms), ...(loads ? [duration(one.load_ms)] : []), duration(one.prefill_ms), duration(one.interference_ms), duration(one.cost_ms)];
    const load = make("div", { class: "load" }, bar(null, share(one.cached_tokens, one.cached_tokens + one.uncached_tokens)), make("b", {}, `${count(one.cached_tokens)} of ${count(one.cached_tokens + one.uncached_tokens)}`));
    const cached = cell();
    cached.append(load);
    const who = cell();
    who.append(one.is_chosen ? `${one.worker}  ✓` : one.worker);
    const rest = values.map((value, at) => {
      const node = cell("n", names[at + 2]);
      node.append(value);
      return node;
    });
    body.append(make("tr", { role: "row", ...(one.is_chosen && { class: "chosen" }) }, who, cached, ...rest));
  }
  return make("table", { class: "candidates", role: "table", "aria-label": "The workers that were weighed" }, make("thead", { role: "rowgroup" }, head), body);
}

function attempt(one, index, request) {
  const isLast = index === request.attempts - 1 || !one.end;
  const facts = [
    one.queued_ms >= 0.5 && `after ${duration(one.queued_ms)} in the queue`,
    one.num_busy && `asked ${one.num_busy} times more because it was busy`,
    one.first_ms != null && `first token after ${duration(one.first_ms)}`,
    one.output_tokens && `${count(one.output_tokens)} tokens when it ended`,
    one.end ? `lost after ${duration(one.took_ms)}: ${one.end}` : `${duration(one.took_ms)} there`,
  ].filter(Boolean).join("; ");
  const choice = one.choice ? ` (choice ${one.choice + 1})` : "";
  const head = make("div", { class: "head" }, make("h2", {}, `${index + 1}. ${one.server}${choice}`), make("p", { class: "note" }, facts));
  const node = make("section", { class: "panel" }, head);
  if (one.why) node.append(make("p", { class: "why" }, one.why, " ", ...(one.is_cloud ? [] : [make("span", { class: "soft" }, "Costs are ms of delay for everybody.")])));
  if (one.candidates.length) node.append(candidates(one, request.prompt_tokens));
  if (one.end && isLast && request.phase === "ended") mark(head.firstChild, "class", "failed");
  return node;
}

/** The whole page of an explained request. */
function requestPage(told) {
  const { request } = told;
  const chip = make("span", { class: "chip" });
  showPhase(chip, request);
  const names = told.names.length ? make("span", { class: "soft" }, `in the log: ${told.names.slice(0, 4).join(", ")}`) : "";
  const parts = [
    make("a", { class: "back", href: "#/" }, "← The fleet"),
    make("div", { class: "title" }, make("h2", { id: "request-title", tabindex: "-1" }, request.id), chip, names),
    make("dl", { class: "figures facts" }, ...facts(request)),
    way(told.spans),
    ...told.attempts.map((one, index) => attempt(one, index, request)),
  ];
  if (told.num_missing) parts.push(make("p", { class: "note" }, `${told.num_missing} further attempts are not kept.`));
  return parts;
}

/** Show newer parts. The link and the heading stay: whichever has the focus keeps it. */
function renewRequest(view, parts) {
  const title = view.querySelector(".title");
  if (!title || !parts[1].matches(".title")) return view.replaceChildren(...parts);
  while (title.childNodes.length > 1) title.lastChild.remove();
  title.append(...[...parts[1].childNodes].slice(1));
  while (view.lastChild !== title) view.lastChild.remove();
  view.append(...parts.slice(2));
}

function requestMissing(text) {
  return [make("a", { class: "back", href: "#/" }, "← The fleet"), make("p", { class: "panel" }, text)];
}
