"use strict";
// Numbers, times and amounts in words, and small helpers for elements. Knows nothing of the data.

const $ = (id) => document.getElementById(id);
const NONE = "–";
const UNKNOWN = "?"; // money that no price says
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** An element: `make("td", {class: "n"}, "text", child)`. Text is never read as markup. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Write text or an attribute only where it changes: the page is written every second. */
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** 950, 9,512, 18.3k, 4.27M */
function count(value) {
  if (value < 1e4) return grouped.format(value);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return (value / size).toPrecision(3).replace(/\.?0+$/, (end) => (end[0] === "." ? "" : end)) + unit;
  }
  return String(value);
}

/** 1 turn, 2 turns */
const many = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

/** A rate: 0, 7.4, 112, 12.3k */
const rate = (value) => (value < 10 && value > 0 ? value.toFixed(1) : count(Math.round(value)));

/** Bytes in binary units: 512 MiB, 64 GiB, 1.5 TiB */
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${value < 10 && at ? +value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** Milliseconds in the unit that fits: 4.2 ms, 310 ms, 1.24 s, 2 min 5 s, 3 h 12 min */
function duration(ms) {
  if (ms == null) return NONE;
  if (ms < 10) return `${+ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const share = (part, whole) => (whole ? part / whole : 0);
function percent(fraction) {
  if (fraction > 0 && fraction < 0.01) return "<1 %";
  return `${Math.floor(100 * fraction)} %`;
}

/** Micro-units of a currency. */
function amount(micro, currency) {
  const value = micro / 1e6;
  const decimals = value && value < 0.1 ? 4 : 2;
  try {
    const form = { style: "currency", currency, minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    return new Intl.NumberFormat("en", form).format(value);
  } catch {
    return `${value.toFixed(decimals)} ${currency}`;
  }
}

const clock = (date, seconds = true) =>
  date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(seconds && { second: "2-digit" }) });

/** A bar of one or two parts, for the eye only: the numbers stand beside it. */
function bar(node, first, second = 0) {
  const element = node ?? make("span", { class: "bar", "aria-hidden": "true" }, make("i", { class: "second" }), make("i"));
  const [back, front] = element.children;
  const wide = (part) => `${(100 * Math.min(1, Math.max(0, part))).toFixed(1)}%`;
  for (const [part, width] of [[back, wide(second)], [front, wide(first)]]) {
    if (part.style.width !== width) part.style.width = width;
  }
  return element;
}

/** Keep one child of `parent` for each item, in order; `key` tells them apart. */
function keep(parent, items, key, create, update, empty) {
  const known = (parent.known ??= new Map());
  const seen = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    if (seen.has(name)) continue;
    seen.add(name);
    let node = known.get(name);
    if (!node) known.set(name, (node = create(item)));
    update(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const [name, node] of known) {
    if (!seen.has(name)) {
      known.delete(name);
      node.remove();
    }
  }
  parent.none?.remove();
  if (!seen.size && empty) parent.append((parent.none = empty()));
}
