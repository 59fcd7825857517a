// Two lines over the last hour, drawn as SVG. Owns the scales and the cursor; knows nothing of what
// the lines mean.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 40, RIGHT = 4, TOP = 6, BOTTOM = 20;

function draw(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

/** A round number that is at least `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

/** At most one sample for `STEP` pixels: the mean of those that fall there, so that noise is no fur. */
const STEP = 4;
function thinned(samples, width) {
  const size = Math.ceil((samples.length * STEP) / width);
  if (size < 2) return samples;
  const groups = [];
  for (let end = samples.length; end > 0; end -= size) groups.unshift(samples.slice(Math.max(0, end - size), end));
  const mean = (group, index) => {
    const known = group.map((one) => one[index]).filter((value) => value != null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  };
  return groups.map((group) => [group.at(-1)[0], mean(group, 1), mean(group, 2)]);
}

/** `samples` are [unix time, a, b]; null breaks a line. `words(sample)` says one, for the cursor. */
class Chart {
  constructor(box, { unit, words, summary }) {
    Object.assign(this, { box, unit, words, summary, all: [], samples: [], at: null });
    this.tip = make("div", { class: "tip", hidden: "" });
    box.addEventListener("pointermove", (event) => this.point(event.clientX - box.getBoundingClientRect().left));
    box.addEventListener("pointerleave", () => this.show(null));
    box.addEventListener("blur", () => this.show(null));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.samples.length) return;
      event.preventDefault();
      const last = this.samples.length - 1;
      this.show(Math.min(last, Math.max(0, (this.at ?? last + 1) + step)));
    });
    new ResizeObserver(() => this.render()).observe(box);
  }

  set(samples) {
    this.all = samples;
    this.render();
  }

  render() {
    const { box } = this;
    const width = box.clientWidth, height = box.clientHeight;
    if (!width) return;
    const samples = (this.samples = thinned(this.all, width - LEFT - RIGHT));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const most = roundUp(Math.max(1, ...samples.map((one) => Math.max(one[1] ?? 0, one[2] ?? 0))));
    const end = samples.length ? samples.at(-1)[0] : Date.now() / 1000;
    const start = Math.min(samples.length ? samples[0][0] : end, end - 300);
    this.x = (time) => LEFT + ((time - start) / (end - start)) * (width - LEFT - RIGHT);
    this.y = (value) => height - BOTTOM - (value / most) * (height - TOP - BOTTOM);
    for (const part of [0, 0.5, 1]) {
      const y = Math.round(this.y(part * most)) + 0.5;
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }, svg);
      draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, svg).textContent = this.unit(part * most);
    }
    const ticks = width > 420 ? 4 : 2;
    for (let tick = 0; tick <= ticks; tick++) {
      const time = start + ((end - start) * tick) / ticks;
      const anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
      draw("text", { x: this.x(time), y: height - 4, "text-anchor": anchor }, svg).textContent = clock(new Date(1000 * time), end - start < 900);
    }
    draw("path", { class: "b", d: this.path(2) }, svg);
    draw("path", { class: "area", d: this.path(1, true) }, svg);
    draw("path", { class: "a", d: this.path(1) }, svg);
    box.replaceChildren(svg, this.tip);
    mark(box, "aria-label", this.summary(this.all));
    if (this.at != null) this.show(this.at);
  }

  /** The line of one value; a lone sample is a short dash. */
  path(index, isArea = false) {
    const ground = this.y(0).toFixed(1);
    let d = "", from = null, x = 0;
    const close = () => {
      if (from == null) return;
      if (isArea) d += `L${x},${ground}L${from},${ground}Z`;
      else if (d.endsWith(`M${from},${this.last}`)) d += "h2";
      from = null;
    };
    for (const sample of this.samples) {
      if (sample[index] == null) {
        close();
        continue;
      }
      x = this.x(sample[0]).toFixed(1);
      this.last = this.y(sample[index]).toFixed(1);
      d += `${from == null ? "M" : "L"}${x},${this.last}`;
      from ??= x;
    }
    close();
    return d;
  }

  point(x) {
    let best = null, near = Infinity;
    this.samples.forEach((sample, index) => {
      const far = Math.abs(this.x(sample[0]) - x);
      if (far < near) [best, near] = [index, far];
    });
    this.show(best);
  }

  show(index) {
    this.at = index;
    const sample = index == null ? null : this.samples[index];
    this.box.querySelector(".cursor")?.remove();
    this.tip.hidden = !sample;
    if (!sample) return;
    const x = this.x(sample[0]), width = this.box.clientWidth;
    draw("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: this.y(0) }, this.box.firstChild);
    say(this.tip, `${clock(new Date(1000 * sample[0]))}  ${this.words(sample)}`);
    const left = x > width / 2 ? x - this.tip.offsetWidth - 10 : x + 10;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }
}
