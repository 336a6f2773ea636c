// Requests that ended lately, and why one went the way it did.

import { $, NONE, clock, h, joules, keyed, number, seconds, share, tag, text } from "./dom.js";

const COLUMNS = ["Ended", "Request", "Class", "Pool", "Instance", "Outcome", "Waited", "TTFT", "Tokens in / out", "Energy"];
const REFRESH_MS = 3000;

export class RequestsView {
  constructor(data, dialog) {
    this.data = data;
    this.dialog = dialog;
    this.which = "missed";
    this.rows = { missed: [], recent: [] };
    this.asked = 0;
    this.body = h("tbody");
    this.empty = h("p", { class: "empty" }, "");
    this.table = h("table", {}, h("caption", { class: "sr" }, "Requests that ended lately"), h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)))), this.body);
    $("request-table").append(this.table, this.empty);
    $("which").addEventListener("change", (event) => {
      this.which = event.target.value;
      this.draw();
    });
    $("lookup").addEventListener("submit", (event) => {
      event.preventDefault();
      const id = $("lookup-id").value.trim();
      if (id) this.explain(id);
    });
    this.visible = false;
    new IntersectionObserver((seen) => {
      this.visible = seen[seen.length - 1].isIntersecting;
    }).observe($("requests"));
  }

  // Asked for only while they can be seen.
  async render() {
    if (!this.visible || Date.now() - this.asked < REFRESH_MS) return;
    this.asked = Date.now();
    try {
      this.rows = await this.data.call("/admin/dashboard/requests");
    } catch {
      return; // the connection's own state tells
    }
    this.draw();
  }

  draw() {
    const rows = this.rows[this.which].filter((row) => !this.data.service || row.service === this.data.service);
    this.table.hidden = !rows.length;
    this.empty.hidden = rows.length > 0;
    text(this.empty, this.which === "missed" ? "None of the latest requests missed its objectives." : "No request has ended yet.");
    keyed(this.body, rows, (row) => `${row.id}${row.t}${row.joules ?? ""}`, (row) => this.row(row), () => {});
  }

  row(row) {
    const kept = row.attained === undefined ? "" : row.attained ? "" : "bad";
    return h("tr", {}, [
      clock(row.t),
      h("button", { type: "button", class: "link", onclick: () => this.explain(row.id, row) }, row.id.length > 20 ? `…${row.id.slice(-16)}` : row.id),
      row.class || NONE, row.pool || NONE, row.instance || NONE,
      h("span", { data: { level: kept } }, row.error ? `${row.outcome}: ${row.error}` : row.attained === false ? `${row.outcome}, late` : row.outcome),
      seconds(row.queue_s), seconds(row.ttft_s), `${number(row.input_tokens)} / ${number(row.output_tokens)}`,
      row.joules === undefined ? NONE : [joules(row.joules), " ", tag(row.joules_quality || "modelled")],
    ].map((value, place) => h("td", { data: { label: COLUMNS[place] } }, value)));
  }

  // What the gateway says of it; without that, what its row says.
  async explain(id, row = null) {
    this.dialog.show(`Request ${id}`, h("p", { class: "note" }, "Asking…"));
    let told = null;
    let why = "";
    try {
      told = await this.data.call(`/admin/explain/${encodeURIComponent(id)}`);
    } catch (error) {
      why = error.code === "unknown_route" ? "This gateway keeps no explanations; this is what its row in the run log says." : error.message;
    }
    const known = row || told?.outcome || [...this.rows.recent, ...this.rows.missed].find((one) => one.id === id);
    this.dialog.show(`Request ${id}`,
      told && explained(told),
      known && h("h3", {}, "How it went"), known && this.story(known),
      why && h("p", { class: known ? "note" : "problem" }, known ? why : why.startsWith("This gateway") ? "It is not among the latest requests, and this gateway keeps no explanations." : why),
      known && h("details", {}, h("summary", {}, "The row as recorded"), h("pre", {}, JSON.stringify(known, null, 2))));
  }

  story(row) {
    const facts = {
      Ended: `${clock(row.t)}, ${row.outcome}${row.error ? ` (${row.error})` : ""}, status ${row.status}`,
      Objectives: row.attained === undefined ? "not judged" : row.attained ? "kept" : "missed",
      Class: row.class ? `${row.class}: ${number(row.input_tokens)} tokens in, estimated ${number(row.input_estimate)}` : NONE,
      Answer: row.predicted ? `${number(row.output_tokens)} tokens; foretold ${number(row.predicted.q50)}, at most ${number(row.predicted.q90)} in nine of ten; short ${share(row.predicted.p[0])}, medium ${share(row.predicted.p[1])}, long ${share(row.predicted.p[2])}` : NONE,
      Served: `${row.instance || NONE} of pool ${row.pool || NONE}${row.attempts > 1 ? `, attempt ${row.attempts}` : ""}${row.moves ? `, moved ${row.moves} times, longest pause ${seconds(row.seam_s)}` : ""}`,
      Times: `waited ${seconds(row.queue_s)}, first token after ${seconds(row.ttft_s)}, all after ${seconds(row.e2e_s)}; ${number(row.gaps_late)} of ${number(row.gaps)} gaps between tokens late`,
      "Gateway's own time": row.overhead_ms === undefined ? NONE : `${number(row.overhead_ms)} ms`,
    };
    const spent = row.joules === undefined ? [] : [h("dt", {}, "Energy"), h("dd", {}, `${joules(row.joules)} `, tag(row.joules_quality || "modelled"))];
    return h("dl", { class: "facts" }, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]), spent);
  }
}

// Sentences first, then what was weighed, then the rest as it was told.
const explained = (told) => {
  const { told: sentences = [], considered = [], features, prediction, plan, state } = told;
  return h("section", { class: "explained" },
    h("h3", {}, state === "ended" ? "Why it went where it went" : `Under way: ${state}`),
    h("ul", {}, sentences.map((line) => h("li", {}, `${line}.`))),
    considered.length > 0 && weighed(considered),
    [["What its class rests on", features], ["Prediction", prediction], ["Plan of that time", plan]].map(([name, value]) =>
      value && h("details", {}, h("summary", {}, name), tree(value, 0))));
};

const weighed = (considered) => h("div", { class: "scroll weighed" }, h("table", {},
  h("caption", { class: "sr" }, "Instances weighed at the last choice"),
  h("thead", {}, h("tr", {}, ["Weighed", "Pool", "TP", "First token after", "In time", "Others keep theirs", "Adds"].map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", {}, considered.map((one) => h("tr", { data: one.chosen ? { chosen: "" } : undefined },
    h("td", {}, one.chosen ? `${one.instance} (taken)` : one.instance), h("td", {}, one.pool), h("td", {}, String(one.tp)), h("td", {}, seconds(one.ttft_s)),
    h("td", {}, one.in_time ? "yes" : "no"), h("td", {}, one.keeps_others ? "yes" : "no"),
    h("td", {}, one.added_joules === null || one.added_joules < 0 ? NONE : [joules(one.added_joules), " ", tag("modelled")]))))));

// Any shape: names and values, nested as they come.
const tree = (value, depth) => {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return number(value, 4);
  if (typeof value !== "object") return String(value);
  if (Array.isArray(value) && value.every((one) => typeof one !== "object" || one === null)) return value.map((one) => tree(one)).join(", ");
  const entries = Array.isArray(value) ? value.map((one, place) => [String(place + 1), one]) : Object.entries(value);
  const inner = h("dl", { class: "facts" }, entries.map(([name, one]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, tree(one, depth + 1))]));
  return depth > 1 && entries.length > 4 ? h("details", {}, h("summary", {}, `${entries.length} fields`), inner) : inner;
};
