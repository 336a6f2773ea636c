// The time-energy frontier of each class: operating points of the profile that no other beats, the promise, and where
// the class runs now. Small multiples with one scale, so that classes can be compared.

import { $, NONE, h, keyed, number, seconds, setTag, svg, text } from "./dom.js";

const WIDE = 250;
const HIGH = 150;
const PAD = { left: 34, right: 8, top: 8, bottom: 22 };
const REFRESH_MS = 10_000;
const AXES = { ttft: "TTFT p99", tbt: "TBT p99" };
const DECADES = [1, 2, 5];

const point = (row, columns) => Object.fromEntries(columns.map((name, place) => [name, row[place]]));
const energy = (value) => `${number(value, 3)} J`;

// Of rising deadlines, each point that costs less than all before it.
const staircase = (points, key) => {
  const steps = [];
  for (const p of [...points].filter((one) => one[key] !== null).sort((a, b) => a[key] - b[key] || a.j_per_output_token - b.j_per_output_token)) {
    if (!steps.length || p.j_per_output_token < steps[steps.length - 1].j_per_output_token) steps.push(p);
  }
  return steps;
};

const ticks = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of DECADES) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length > 5 ? found.filter((v) => /^1/.test(v.toExponential())) : found;
};

export class FrontierView {
  constructor(data) {
    this.data = data;
    this.axis = "ttft";
    this.known = new Map(); // service -> frontiers
    this.drawn = 0;
    const choose = h("fieldset", { class: "segments", id: "axis" }, h("legend", { class: "sr" }, "Deadline"),
      Object.entries(AXES).map(([key, label]) => h("label", {}, h("input", { type: "radio", name: "axis", value: key, checked: key === this.axis, onchange: () => this.turn(key) }), h("span", {}, label))));
    $("frontier-note").after(choose);
    this.choose = choose;
  }

  turn(axis) {
    this.axis = axis;
    this.draw();
  }

  // Every ten seconds: points do not change, only where the classes run.
  render() {
    const names = this.data.services.map((service) => service.name).join("\n");
    if (names === this.names && Date.now() - this.drawn < REFRESH_MS) return;
    this.names = names;
    this.draw();
  }

  async fetch(name) {
    this.known.set(name, null);
    try {
      this.known.set(name, await this.data.call(`/admin/dashboard/frontier?service=${encodeURIComponent(name)}`));
    } catch (error) {
      this.known.delete(name);
      this.known.set(name, { classes: {}, why: error.message });
      setTimeout(() => this.known.delete(name), REFRESH_MS);
    }
    this.draw();
  }

  draw() {
    this.drawn = Date.now();
    const services = this.data.services;
    const cards = [];
    const why = [];
    for (const service of services) {
      if (!this.known.has(service.name)) this.fetch(service.name);
      const found = this.known.get(service.name);
      if (!found) continue;
      if (found.why) why.push(services.length > 1 ? `${service.name}: ${found.why}` : found.why);
      for (const [name, rows] of Object.entries(found.classes)) {
        cards.push({ key: `${service.name}/${name}`, service, name, found, points: rows.map((row) => point(row, found.columns)) });
      }
    }
    const first = cards[0]?.found;
    setTag($("frontier-tag"), first?.quality);
    this.choose.hidden = !cards.length;
    text($("frontier-note"), first
      ? `Joules per output token against a deadline, for ${first.model} on ${first.gpu} (profile of ${first.made_on}, ${first.engine}). ` +
        "A dot is an operating point that no other beats in TTFT, TBT, joules and GPUs at once; a filled one has the TP and clock that the class's pool runs now. " +
        "Dashed: the promise. Ring: the least energy that keeps it. Cross: the last five minutes, the requests' own joules."
      : why.join(" "));
    const scale = this.scale(cards);
    keyed($("frontiers"), cards, (c) => c.key, () => h("figure", { class: "frontier" }), (figure, card) => figure.replaceChildren(...this.card(card, scale)));
  }

  scale(cards) {
    const key = `${this.axis}_p99_s`;
    const [xs, ys] = [[], []];
    for (const { points, service, name } of cards) {
      for (const p of points) {
        if (p[key] !== null) xs.push(p[key]);
        ys.push(p.j_per_output_token);
      }
      xs.push(this.limit(service, name));
      const now = service.classes[name];
      if (now?.ttft_p99_s && this.axis === "ttft") xs.push(now.ttft_p99_s);
      if (now?.j_per_output_token) ys.push(now.j_per_output_token);
    }
    return { x: [Math.min(...xs) * 0.9, Math.min(Math.max(...xs), 60) * 1.1], y: [Math.min(...ys) * 0.85, Math.max(...ys) * 1.15] };
  }

  limit(service, name) {
    return this.axis === "ttft" ? service.slo.ttft_s[name[0]] : service.slo.tbt_s;
  }

  // The pool that serves the class first, and the (TP, clock) of its ready instances.
  running(service, name) {
    const pool = service.pools.find((one) => one.serves.includes(name[1])) || service.pools[service.pools.length - 1];
    const at = Object.fromEntries(service.instance_columns.map((column, place) => [column, place]));
    const mine = service.instances.filter((i) => i[at.pool] === pool.name && i[at.state] === "ready");
    const all = mine.length ? mine : service.instances.filter((i) => i[at.state] === "ready");
    return { pool: pool.name, points: new Set(all.map((i) => `${i[at.tp]}@${i[at.clock_mhz]}`)) };
  }

  card({ service, name, points, found }, scale) {
    const key = `${this.axis}_p99_s`;
    const limit = this.limit(service, name);
    const now = service.classes[name];
    const run = this.running(service, name);
    const x = (v) => PAD.left + (Math.log(Math.max(v, scale.x[0]) / scale.x[0]) / Math.log(scale.x[1] / scale.x[0])) * (WIDE - PAD.left - PAD.right);
    const y = (v) => HIGH - PAD.bottom - (Math.log(v / scale.y[0]) / Math.log(scale.y[1] / scale.y[0])) * (HIGH - PAD.top - PAD.bottom);
    const kept = points.filter((p) => p.ttft_p99_s !== null && p.ttft_p99_s <= service.slo.ttft_s[name[0]] && p.tbt_p99_s !== null && p.tbt_p99_s <= service.slo.tbt_s);
    const best = kept.reduce((a, b) => (a && a.j_per_output_token <= b.j_per_output_token ? a : b), null);
    const marks = this.grid(scale, x, y);
    const stairs = staircase(points, key);
    marks.push(svg("path", { class: "stairs", d: stairs.map((p, i) => `${i ? `H${x(p[key])}V` : `M${x(p[key])} `}${y(p.j_per_output_token)}`).join("") + (stairs.length ? `H${WIDE - PAD.right}` : "") }));
    if (limit >= scale.x[0]) marks.push(svg("line", { class: "promise", x1: x(limit), x2: x(limit), y1: PAD.top, y2: HIGH - PAD.bottom }));
    for (const p of points) {
      if (p[key] === null || p[key] > scale.x[1]) continue;
      const here = run.points.has(`${p.tp}@${p.clock_mhz}`);
      const words = `TP${p.tp} ${p.clock_mhz} MHz at ${number(p.offered_rps)} requests/s: ${energy(p.j_per_output_token)} per token, ${AXES[this.axis]} ${seconds(p[key])}`;
      marks.push(svg("circle", { class: here ? "op here" : "op", cx: x(p[key]), cy: y(p.j_per_output_token), r: here ? 3.2 : 2.2 }, svg("title", {}, words)));
    }
    if (best) marks.push(svg("circle", { class: "best", cx: x(best[key]), cy: y(best.j_per_output_token), r: 6 }));
    marks.push(...this.nowMarks(now, scale, x, y));
    const [one] = run.points;
    const runs = run.points.size === 0 ? "nothing ready" : run.points.size === 1 ? `TP${one.replace("@", " ")} MHz` : `${run.points.size} settings`;
    return [
      h("figcaption", {}, h("b", {}, name), ` ${run.pool}: ${runs}`),
      svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${name}: ${this.words(best, now, found)}` }, marks),
      h("p", { class: "note" }, this.words(best, now, found)),
    ];
  }

  nowMarks(now, scale, x, y) {
    if (!now?.ended) return [];
    const across = this.axis === "ttft" ? now.ttft_p99_s : null;
    const up = now.j_per_output_token;
    const tall = { y1: PAD.top, y2: HIGH - PAD.bottom };
    if (across && up) return [svg("path", { class: "now", d: `M${x(across) - 5} ${y(up)}h10m-5 -5v10` }), svg("circle", { class: "now", cx: x(across), cy: y(up), r: 4 })];
    if (across) return [svg("line", { class: "now", x1: x(Math.min(across, scale.x[1])), x2: x(Math.min(across, scale.x[1])), ...tall })];
    if (up) return [svg("line", { class: "now", x1: PAD.left, x2: WIDE - PAD.right, y1: y(up), y2: y(up) })];
    return [];
  }

  words(best, now, found) {
    const least = best
      ? `Least within the promise: TP${best.tp} ${best.clock_mhz} MHz, ${energy(best.j_per_output_token)}/token (${found.quality}).`
      : "No point keeps the promise.";
    if (!now?.ended) return `${least} No request in five minutes.`;
    const spent = now.j_per_output_token ? `, ${energy(now.j_per_output_token)}/token (${now.quality || "modelled"})` : "";
    return `${least} Now: TTFT p99 ${now.ttft_p99_s === null ? NONE : seconds(now.ttft_p99_s)} (measured)${spent}.`;
  }

  grid(scale, x, y) {
    const marks = [];
    for (const value of ticks(...scale.x)) {
      marks.push(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: PAD.top, y2: HIGH - PAD.bottom }));
      marks.push(svg("text", { class: "axis", x: x(value), y: HIGH - 8, "text-anchor": "middle" }, value < 1 ? `${number(value * 1000, 1)} ms` : `${number(value, 1)} s`));
    }
    for (const value of ticks(...scale.y)) {
      marks.push(svg("line", { class: "grid", x1: PAD.left, x2: WIDE - PAD.right, y1: y(value), y2: y(value) }));
      marks.push(svg("text", { class: "axis", x: PAD.left - 4, y: y(value) + 3, "text-anchor": "end" }, energy(value)));
    }
    return marks;
  }
}
