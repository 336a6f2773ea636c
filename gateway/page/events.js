// Events: lanes of marks on the time axis of the power chart, a list, and the reason behind each.

import { $, clock, h, keyed, many, say, text } from "./dom.js";
import { LEFT, RIGHT, cursor } from "./chart.js";

// What is shown as what: a lane for those that belong together, a sign that needs no colour to be told apart.
export const KINDS = {
  plan: { label: "Plans", lane: "plans", sign: "◆" },
  proposed: { label: "Proposals", lane: "plans", sign: "◇" },
  ladder: { label: "Ladder", lane: "ladder", sign: "▲" },
  guard: { label: "Guard", lane: "ladder", sign: "!" },
  death: { label: "Deaths", lane: "instances", sign: "✕" },
  migration: { label: "Migrations", lane: "instances", sign: "⇄" },
  instance: { label: "Instances", lane: "instances", sign: "●" },
  clock: { label: "Clocks", lane: "clocks", sign: "≈", quiet: true },
  operator: { label: "Operators", lane: "people", sign: "★" },
  error: { label: "Errors", lane: "people", sign: "!" },
};
const LANES = { plans: "Plans", ladder: "Ladder", instances: "Instances", clocks: "Clocks", people: "Operators" };
const APART = 15; // pixels under which marks are drawn as one
const LISTED = 150;
const LEVELS = { info: 0, notice: 1, bad: 2 };
const SPOKEN = new Set(["ladder", "guard", "death", "error"]);

export class EventsView {
  constructor(data, dialog) {
    this.data = data;
    this.dialog = dialog;
    this.shown = new Set(Object.keys(KINDS).filter((kind) => !KINDS[kind].quiet));
    this.boxes = new Map();
    this.lanes = new Map();
    this.build();
    new ResizeObserver(() => this.render()).observe($("lanes"));
    cursor.addEventListener("moved", () => this.point());
  }

  build() {
    for (const [kind, { label, sign }] of Object.entries(KINDS)) {
      const box = h("input", { type: "checkbox", checked: this.shown.has(kind), onchange: () => this.toggle(kind, box.checked) });
      const count = h("small");
      this.boxes.set(kind, { count, box });
      $("kinds").append(h("label", { class: "chip", data: { kind } }, box, h("span", {}, h("i", { "aria-hidden": "true" }, sign), `${label} `, count)));
    }
    for (const [lane, label] of Object.entries(LANES)) {
      const marks = h("div", { class: "marks" });
      const row = h("div", { class: "lane" }, h("span", { class: "lane-name" }, label), marks);
      this.lanes.set(lane, { row, marks });
      $("lanes").append(row);
    }
    this.line = h("div", { class: "cursor", hidden: true });
    $("lanes").append(this.line);
  }

  toggle(kind, on) {
    if (on) this.shown.add(kind);
    else this.shown.delete(kind);
    this.render();
  }

  // New ones are spoken once, when they matter to somebody who cannot see the marks.
  announce(fresh) {
    for (const event of fresh) if (SPOKEN.has(event.kind)) say(`${event.title}.`);
  }

  render() {
    const { data } = this;
    if (!data.snapshot) return;
    const all = data.eventsShown(new Set(Object.keys(KINDS)));
    const counts = {};
    for (const event of all) counts[event.kind] = (counts[event.kind] || 0) + event.count;
    for (const [kind, { count }] of this.boxes) text(count, counts[kind] ? String(counts[kind]) : "");
    const events = all.filter((event) => this.shown.has(event.kind));
    this.drawLanes(events);
    const newest = events.sort((a, b) => b.n - a.n).slice(0, LISTED);
    $("no-events").hidden = newest.length > 0;
    keyed($("event-list"), newest, (e) => `${e.kind}${e.t}${e.title}`, (event) => this.item(event), (node, event) => {
      const [count] = node.getElementsByTagName("small");
      text(count, event.count > 1 ? `× ${event.count}` : "");
    });
  }

  item(event) {
    return h("li", { data: { kind: event.kind, level: event.level } },
      h("button", { type: "button", onclick: () => this.open([event]), onpointerenter: () => cursor.set(event.t), onpointerleave: () => cursor.set(null) },
        h("time", {}, clock(event.t)), h("i", { "aria-hidden": "true" }, KINDS[event.kind].sign),
        h("span", {}, h("b", {}, event.title), " ", h("small"), event.why && h("em", {}, event.why))));
  }

  drawLanes(events) {
    const wide = $("lanes").clientWidth - LEFT - RIGHT;
    const now = this.data.snapshot.t;
    const from = now - this.data.window;
    for (const [lane, { row, marks }] of this.lanes) {
      const mine = events.filter((event) => KINDS[event.kind].lane === lane).sort((a, b) => a.t - b.t);
      row.hidden = !mine.length && (lane === "clocks" || lane === "people");
      const groups = [];
      for (const event of mine) {
        const at = ((event.t - from) / this.data.window) * wide;
        const last = groups[groups.length - 1];
        if (last && at - last.at < APART) last.events.push(event);
        else groups.push({ at, events: [event] });
      }
      keyed(marks, groups, (g) => `${g.events[0].n}-${g.events.length}`, (g) => this.mark(g), (node, g) => {
        node.style.left = `${(g.at / wide) * 100}%`;
      });
    }
  }

  mark(group) {
    const worst = group.events.reduce((a, b) => (LEVELS[b.level] > LEVELS[a.level] ? b : a));
    const count = group.events.reduce((sum, event) => sum + event.count, 0);
    const name = `${clock(worst.t)} ${worst.title}${count > 1 ? `, and ${many(count - 1, "other event")}` : ""}`;
    return h("button", {
      type: "button", class: "mark", title: name, "aria-label": name, data: { kind: worst.kind, level: worst.level },
      onclick: () => this.open(group.events),
    }, KINDS[worst.kind].sign, count > 1 && h("sup", {}, count > 99 ? "99" : String(count)));
  }

  point() {
    const { snapshot, window } = this.data;
    const inside = cursor.t !== null && snapshot && cursor.t >= snapshot.t - window && cursor.t <= snapshot.t;
    this.line.hidden = !inside;
    if (!inside) return;
    const wide = $("lanes").clientWidth - LEFT - RIGHT;
    this.line.style.left = `${LEFT + ((cursor.t - snapshot.t + window) / window) * wide}px`;
  }

  open(events) {
    const parts = events.slice(-20).toReversed().map((event) => h("section", { class: "event" },
      h("h3", {}, h("i", { "aria-hidden": "true" }, KINDS[event.kind].sign), event.title, event.count > 1 && ` × ${event.count}`),
      h("p", { class: "note" }, `${clock(event.t)}${event.service ? ` · ${event.service}` : ""} · ${KINDS[event.kind].label.toLowerCase()}`),
      h("p", {}, event.why || "No reason was given."),
      h("details", {}, h("summary", {}, "The row as recorded"), h("pre", {}, JSON.stringify(event.detail, null, 2)))));
    this.dialog.show(events.length > 1 ? many(events.length, "event") : "Event", parts);
  }
}

