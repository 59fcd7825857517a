// The stream, the views, the key and the theme.

const LIVE_S = 5;
let overview = null, samples = [], heardAt = 0, shown = null;
let pending = { events: [], num_lost: 0 };

const key = {
  get: () => sessionStorage.getItem("herma-key"),
  headers: () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {}),
};

const throughput = new Chart($("throughput"), {
  unit: (value) => rate(value),
  words: (one) => `${rate(one[1])} answered, ${rate(one[2])} of prompts`,
  summary: (all) => (all.length ? `Throughput: ${rate(all.at(-1)[1])} tokens per second now, ${rate(Math.max(...all.map((one) => one[1])))} at most` : "Throughput: nothing yet"),
});
const first = new Chart($("first"), {
  unit: (value) => (value >= 1000 ? `${+(value / 1000).toFixed(1)} s` : `${value < 10 ? +value.toFixed(1) : Math.round(value)} ms`),
  words: (one) => (one[1] == null ? "no request" : `${duration(one[1])}, 95 % ${duration(one[2])}`),
  summary: (all) => {
    const last = all.findLast((one) => one[1] != null);
    return last ? `First token: ${duration(last[1])} in the median lately` : "First token: nothing yet";
  },
});

function showOverview() {
  if (!overview || document.hidden) return;
  showCondition(overview);
  if (shown) return;
  showFigures(overview);
  showWorkers(overview);
  showRequests(overview);
  showModels(overview);
  showMoney(overview);
  showClients(overview);
  showConversations(overview);
  if (!performance.getEntriesByName("filled").length) performance.mark("filled");
}

function showHistory() {
  if (document.hidden) return;
  // array: time, seconds, output, prompt, cached, requests, failed, by cloud, open, queued, p50, p95
  throughput.set(samples.map((one) => [one[0], one[2], Math.max(0, one[3] - one[4])]));
  first.set(samples.map((one) => [one[0], one[10], one[11]]));
}

const handlers = {
  state: (data) => {
    overview = data;
    showOverview();
    if (shown) refreshRequest();
  },
  history: (data) => {
    samples = [...samples.filter((one) => !data.length || one[0] < data[0][0]), ...data].slice(-720);
    showHistory();
  },
  log: (data) => {
    pending = { events: [...pending.events, ...data.events].slice(-LOG_ROWS), num_lost: pending.num_lost + data.num_lost };
    showPending();
  },
};

function showPending() {
  if (document.hidden) return;
  showLog(pending);
  pending = { events: [], num_lost: 0 };
}

function setLive(isLive, text) {
  mark($("live"), "class", `live ${isLive ? "on" : "off"}`);
  say($("live"), text);
}

/** Read the stream until it ends. */
async function listen() {
  const reply = await fetch("/dashboard/stream", { headers: key.headers(), cache: "no-store" });
  if (reply.status === 401 || reply.status === 403) {
    const told = await reply.json().catch(() => ({}));
    await askForKey(key.get() || reply.status === 403 ? told.error?.message ?? "" : "");
    return;
  }
  if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
  $("key-form").hidden = true;
  $("main").hidden = false;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    heardAt = performance.now();
    setLive(true, "live");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      handlers[name]?.(JSON.parse(data));
    }
  }
}

async function run() {
  for (let pause = 500; ; pause = Math.min(8000, 2 * pause)) {
    const begun = performance.now();
    try {
      await listen();
    } catch {
      setLive(false, "no connection");
    }
    if (performance.now() - begun > 10000) pause = 500;
    await new Promise((wake) => setTimeout(wake, pause));
  }
}

function askForKey(problem) {
  $("main").hidden = true;
  $("key-form").hidden = false;
  say($("key-error"), problem);
  setLive(false, "locked");
  say($("condition").lastElementChild, "Locked");
  $("key").focus();
  return new Promise((done) => {
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("herma-key", $("key").value.trim());
      $("key").value = "";
      done();
    };
  });
}

async function refreshRequest() {
  const wanted = shown;
  if (!wanted || wanted.isAsked || document.hidden || wanted.told?.request.phase === "ended") return;
  wanted.isAsked = true;
  const reply = await fetch(`/dashboard/requests/${encodeURIComponent(wanted.id)}`, { headers: key.headers(), cache: "no-store" }).finally(() => (wanted.isAsked = false));
  if (shown !== wanted) return;
  const told = await reply.json();
  const isFirst = !wanted.told;
  wanted.told = reply.ok ? told : { request: { phase: "ended" } };
  renewRequest($("request-view"), reply.ok ? requestPage(told) : requestMissing(told.error.message));
  if (isFirst) $("request-title")?.focus();
}

function route() {
  const match = location.hash.match(/^#\/requests\/(.+)$/);
  shown = match ? { id: decodeURIComponent(match[1]), told: null } : null;
  $("fleet-view").hidden = Boolean(shown);
  $("request-view").hidden = !shown;
  document.title = shown ? `${shown.id} – Herma` : "Herma";
  scrollTo(0, 0);
  if (shown) {
    $("request-view").replaceChildren();
    refreshRequest();
  } else {
    showOverview();
    showHistory();
  }
}

const THEMES = ["system", "light", "dark"];
function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("herma-theme", name);
  say($("theme"), `Theme: ${name}`);
}

setTheme(THEMES.includes(localStorage.getItem("herma-theme")) ? localStorage.getItem("herma-theme") : "system");
$("theme").onclick = () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("herma-theme")) + 1) % THEMES.length]);
$("filter").oninput = () => overview && showRequests(overview);
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown) location.hash = "#/";
  if (event.key === "/" && !shown && document.activeElement.tagName !== "INPUT") {
    event.preventDefault();
    $("filter").focus();
  }
});
document.addEventListener("visibilitychange", () => {
  showPending();
  showOverview();
  showHistory();
});
setInterval(() => {
  if (heardAt && performance.now() - heardAt > 1000 * LIVE_S) setLive(false, "no news");
}, 1000);
route();
run();
