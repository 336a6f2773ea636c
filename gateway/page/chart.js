// Series over time on a canvas, with a legend that is also the read-out, a cursor shared by all charts, and the same
// figures as a table. Colours come from the style sheet, so that they follow light and dark.

import { h, text, NONE, clock } from "./dom.js";

export const LEFT = 60;
export const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const STEPS_S = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600];
const TABLE_ROWS = 12;

// One moment under the pointer or the arrow keys, for all charts at once.
export const cursor = Object.assign(new EventTarget(), {
  t: null,
  set(t) {
    if (t === this.t) return;
    this.t = t;
    this.dispatchEvent(new Event("moved"));
  },
});

const nice = (top) => {
  const power = 10 ** Math.floor(Math.log10(top));
  for (const step of [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10]) if (step * power >= top) return step * power;
  return 10 * power;
};

export class TimeChart {
  // `series`: {key, label, kind: "area" | "line" | "band" | "dash", color, value(row), top(row) for a band}.
  // Areas are stacked in their order. `format` words a value; `floors` (the first under all values) and `ceiling` fix
  // the scale; `extra` names more read-outs {label, value(row), format}.
  constructor(parent, { label, series, format, height = 180, least = 1, floors = [0], ceiling = null, ahead = 0, mark = null, extra = [] }) {
    Object.assign(this, { label, series, format, height, least, floors, ceiling, ahead, mark, extra });
    this.floor = floors[0];
    this.rows = [];
    this.from = 0;
    this.to = 1;
    this.now = 0;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label, height: String(height) });
    this.spot = h("output", { class: "sr", "aria-live": "off" });
    this.legend = h("ul", { class: "legend" });
    this.values = [...series, ...extra].map((one) => {
      const value = h("b", {}, NONE);
      this.legend.append(h("li", { data: { kind: one.kind || "none", color: one.color || "" } }, h("i"), `${one.label} `, value));
      return value;
    });
    this.empty = h("p", { class: "empty", hidden: true });
    this.table = h("details", { class: "table" }, h("summary", {}, "As a table"));
    this.table.addEventListener("toggle", () => this.tabulate());
    parent.append(this.legend, h("div", { class: "plot" }, this.canvas, this.empty), this.spot, this.table);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => cursor.set(this.timeAt(event.offsetX)));
    canvas.addEventListener("pointerleave", () => cursor.set(null));
    canvas.addEventListener("blur", () => cursor.set(null));
    canvas.addEventListener("keydown", (event) => this.keyed(event));
    cursor.addEventListener("moved", () => this.soon());
    new ResizeObserver(() => this.soon()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette = null;
      this.soon();
    });
  }

  keyed(event) {
    if (!this.rows.length) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") cursor.set(null);
    if (step === undefined) return;
    event.preventDefault();
    const here = cursor.t === null ? this.rows.length - 1 : this.nearest(cursor.t);
    const row = this.rows[Math.max(0, Math.min(this.rows.length - 1, here + step))];
    cursor.set(row[0]);
    const told = this.series.map((one) => `${one.label} ${this.word(one, row)}`);
    this.spot.setAttribute("aria-live", "polite");
    text(this.spot, `${clock(row[0])}: ${told.join(", ")}`);
  }

  timeAt(x) {
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    return this.from + ((x - LEFT) / width) * (this.to - this.from);
  }

  nearest(t) {
    let low = 0;
    let high = this.rows.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle][0] < t) low = middle + 1;
      else high = middle;
    }
    return low > 0 && t - this.rows[low - 1][0] < this.rows[low][0] - t ? low - 1 : low;
  }

  word(one, row) {
    const format = one.format || this.format;
    if (one.kind === "band") return `${format(one.value(row))} to ${format(one.top(row))}`;
    return format(one.value(row));
  }

  // `gap`: seconds between two rows over which no line is drawn.
  show(rows, window, now, gap, why = "") {
    Object.assign(this, { rows, now, gap, why });
    this.from = now - window;
    this.to = now + this.ahead;
    this.soon();
    if (this.table.open) this.tabulate();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  colours() {
    if (!this.palette) {
      const style = getComputedStyle(this.canvas);
      const read = (name) => style.getPropertyValue(`--${name}`).trim();
      this.palette = Object.fromEntries(["line", "dim", "ink", "paper", "accent", ...this.series.map((s) => s.color)].map((n) => [n, read(n)]));
      this.font = `11px ${style.fontFamily}`;
    }
    return this.palette;
  }

  known() {
    return this.rows.some((row) => this.series.some((one) => one.value(row) !== null && one.value(row) !== undefined));
  }

  draw() {
    const { canvas } = this;
    const wide = canvas.parentElement.clientWidth;
    if (!wide) return;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== this.height * ratio) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = this.height * ratio;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, this.height);
    const known = this.known();
    this.empty.hidden = known;
    if (!known) text(this.empty, this.why || "No figures yet.");
    const top = this.top();
    this.floor = this.bottom();
    const x = (t) => LEFT + ((t - this.from) / (this.to - this.from)) * (wide - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - this.floor) / (top - this.floor)) * (this.height - TOP - BOTTOM);
    this.axes(pen, wide, known ? top : null, x);
    if (known) {
      pen.save();
      pen.beginPath();
      pen.rect(LEFT, 0, wide - LEFT - RIGHT, this.height - BOTTOM + 1);
      pen.clip();
      this.marks(pen, x, y);
      pen.restore();
    }
    this.pointer(pen, wide, x);
    this.read();
  }

  top() {
    if (this.ceiling !== null) return this.ceiling;
    let most = this.least;
    for (const row of this.rows) {
      let stacked = 0;
      for (const one of this.series) {
        const value = (one.kind === "band" ? one.top(row) : one.value(row)) ?? 0;
        if (one.kind === "area") stacked += value;
        else most = Math.max(most, value);
      }
      most = Math.max(most, stacked);
    }
    return nice(most * 1.04);
  }

  bottom() {
    if (this.floors.length === 1) return this.floors[0];
    let low = Infinity;
    for (const row of this.rows) for (const one of this.series) low = Math.min(low, one.value(row) ?? Infinity);
    return this.floors.find((floor) => low >= floor) ?? this.floors[this.floors.length - 1];
  }

  axes(pen, wide, top, x) {
    const colour = this.colours();
    pen.font = this.font;
    pen.lineWidth = 1;
    pen.fillStyle = colour.dim;
    pen.strokeStyle = colour.line;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const rungs = this.height < 130 ? 2 : 4;
    for (let i = 0; i <= rungs; i += 1) {
      const value = this.floor + (((top ?? this.floor + 1) - this.floor) * i) / rungs;
      const at = Math.round(TOP + (1 - i / rungs) * (this.height - TOP - BOTTOM)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, at);
      pen.lineTo(wide - RIGHT, at);
      pen.stroke();
      if (top !== null) pen.fillText(this.format(value), LEFT - 6, at);
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    const every = STEPS_S.find((s) => (wide - LEFT) / ((this.to - this.from) / s) > 70) || 21600;
    const zone = new Date(this.now * 1000).getTimezoneOffset() * 60;
    for (let t = Math.ceil((this.from - zone) / every) * every + zone; t <= this.to; t += every) {
      const at = x(t);
      if (at < LEFT + 14 || at > wide - RIGHT - 8) continue;
      pen.fillText(clock(t, every < 60), at, this.height - 5);
    }
  }

  marks(pen, x, y) {
    const colour = this.colours();
    const base = new Float64Array(this.rows.length);
    for (const one of this.series) {
      pen.strokeStyle = colour[one.color];
      pen.fillStyle = colour[one.color];
      if (one.kind === "area") this.area(pen, one, base, x, y);
      else if (one.kind === "band") this.band(pen, one, x, y);
      else this.line(pen, one, x, y);
    }
    if (this.mark !== null) {
      pen.strokeStyle = colour.dim;
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(LEFT, y(this.mark));
      pen.lineTo(4000, y(this.mark));
      pen.stroke();
      pen.setLineDash([]);
    }
    if (this.ahead) {
      pen.strokeStyle = colour.dim;
      pen.beginPath();
      pen.moveTo(Math.round(x(this.now)) + 0.5, TOP);
      pen.lineTo(Math.round(x(this.now)) + 0.5, this.height - BOTTOM);
      pen.stroke();
    }
  }

  // Runs of rows without a gap and with a value.
  *runs(value) {
    let run = [];
    for (let i = 0; i < this.rows.length; i += 1) {
      const row = this.rows[i];
      const apart = run.length && row[0] - this.rows[run[run.length - 1]][0] > this.gap;
      if (apart || value(row) === null) {
        if (run.length) yield run;
        run = [];
      }
      if (value(row) !== null) run.push(i);
    }
    if (run.length) yield run;
  }

  area(pen, one, base, x, y) {
    for (const run of this.runs(one.value)) {
      const { rows } = this;
      pen.beginPath();
      for (const i of run) pen.lineTo(x(rows[i][0]), y(base[i] + one.value(rows[i])));
      for (const i of run.toReversed()) pen.lineTo(x(rows[i][0]), y(base[i]));
      pen.globalAlpha = 0.85;
      pen.fill();
      pen.globalAlpha = 1;
    }
    for (let i = 0; i < this.rows.length; i += 1) base[i] += one.value(this.rows[i]) ?? 0;
  }

  band(pen, one, x, y) {
    const shift = one.shift || 0;
    for (const run of this.runs(one.top)) {
      pen.beginPath();
      for (const i of run) pen.lineTo(x(this.rows[i][0] + shift), y(one.top(this.rows[i])));
      for (const i of run.toReversed()) pen.lineTo(x(this.rows[i][0] + shift), y(one.value(this.rows[i])));
      pen.globalAlpha = 0.22;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  line(pen, one, x, y) {
    const shift = one.shift || 0;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    if (one.kind === "dash") pen.setLineDash([5, 3]);
    for (const run of this.runs(one.value)) {
      pen.beginPath();
      for (const i of run) pen.lineTo(x(this.rows[i][0] + shift), y(one.value(this.rows[i])));
      if (run.length === 1) pen.arc(x(this.rows[run[0]][0] + shift), y(one.value(this.rows[run[0]])), 1.5, 0, 7);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  pointer(pen, wide, x) {
    if (cursor.t === null || cursor.t < this.from || cursor.t > this.to) return;
    const at = Math.round(x(cursor.t)) + 0.5;
    const colour = this.colours();
    pen.strokeStyle = colour.ink;
    pen.beginPath();
    pen.moveTo(at, TOP);
    pen.lineTo(at, this.height - BOTTOM);
    pen.stroke();
    const label = clock(cursor.t);
    const half = pen.measureText(label).width / 2 + 4;
    const middle = Math.max(LEFT + half, Math.min(wide - RIGHT - half, at));
    pen.fillStyle = colour.ink;
    pen.fillRect(middle - half, this.height - 17, 2 * half, 15);
    pen.fillStyle = colour.paper;
    pen.textAlign = "center";
    pen.fillText(label, middle, this.height - 5);
  }

  // The legend shows the moment under the cursor, or now.
  read() {
    const t = cursor.t ?? this.now;
    const row = this.rows.length ? this.rows[this.nearest(t)] : null;
    const near = row && Math.abs(row[0] - t) < Math.max(4, 3 * (this.gap || 1)) ? row : null;
    [...this.series, ...this.extra].forEach((one, place) => {
      text(this.values[place], near ? this.word(one, near) : NONE);
      if (one.quiet) this.values[place].parentElement.hidden = !this.rows.some((row) => one.value(row));
    });
  }

  summary(words) {
    if (this.canvas.getAttribute("aria-label") !== words) this.canvas.setAttribute("aria-label", words);
  }

  tabulate() {
    if (!this.table.open) return;
    const every = Math.max(1, Math.ceil(this.rows.length / TABLE_ROWS));
    const rows = this.rows.filter((_, i) => (this.rows.length - 1 - i) % every === 0);
    const shown = [...this.series, ...this.extra];
    const table = h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), shown.map((one) => h("th", { scope: "col" }, one.label)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, clock(row[0])), shown.map((one) => h("td", {}, this.word(one, row)))))));
    this.table.replaceChildren(this.table.firstElementChild, h("div", { class: "scroll" }, table));
  }
}
