// Puts the page together: one rendering a second at most, none while nobody looks.

import { $, NONE, attr, clock, h, joules, many, number, rate, say, setTag, share, tag, text, watts } from "./dom.js";
import { Data } from "./data.js";
import { TimeChart } from "./chart.js";
import { EventsView } from "./events.js";
import { PoolsView } from "./pools.js";
import { FrontierView } from "./frontier.js";
import { RequestsView } from "./requests.js";
import { Control, Dialog } from "./control.js";
import { Orders } from "./orders.js";

const FORECAST_S = 150; // a forecast is of the mean of the next five minutes: it is drawn at their middle
const PROMISE = 0.99;
const KEPT_S = 60; // attainment is drawn over the minute before
const CAUSES = { decode: "Decode", prefill: "Prefill", idle: "Idle", parked: "Parked", starting: "Starting", switching: "Switching", residual: "Unexplained" };

const ALWAYS = new Set(["decode", "prefill", "idle"]); // the other causes are named when they draw something

const data = new Data();
const dialog = new Dialog();
const control = new Control(data, dialog);
const events = new EventsView(data, dialog);
const orders = new Orders(data, dialog);
const pools = new PoolsView(data, control, orders);
const frontier = new FrontierView(data);
const requests = new RequestsView(data, dialog);

const col = (name) => (row) => row[data.columns[name]] ?? null;
const total = (row) => {
  let sum = 0;
  for (const cause of Object.keys(CAUSES)) {
    const value = row[data.columns[`${cause}_w`]];
    if (value === null || value === undefined) return null;
    sum += value;
  }
  return sum;
};

const power = new TimeChart($("power-chart"), {
  label: "Power by cause", height: 190, format: watts,
  series: Object.entries(CAUSES).map(([cause, label]) => ({ label, kind: "area", color: cause, value: col(`${cause}_w`), quiet: !ALWAYS.has(cause) })),
  extra: [{ label: "Total", value: total }],
});
power.table.before($("lanes"));
const load = new TimeChart($("load-chart"), {
  label: "Requests per second, forecast and actual", height: 140, format: rate, ahead: FORECAST_S, least: 0.5,
  series: [
    { label: "Forecast, mean to peak", kind: "band", color: "forecast", shift: FORECAST_S, value: col("mean_rps"), top: col("upper_rps") },
    { label: "Forecast mean", kind: "dash", color: "forecast", shift: FORECAST_S, value: col("mean_rps") },
    { label: "Arrived", kind: "line", color: "actual", value: (row) => row.arrived },
  ],
});
const kept = new TimeChart($("kept-chart"), {
  label: "Share of requests that kept their objectives, by minute", height: 100, format: share, floors: [0.9, 0.5, 0], ceiling: 1, mark: PROMISE,
  series: [{ label: "Kept, over a minute", kind: "line", color: "good", value: (row) => row.kept }],
  extra: [{ label: "Waiting", value: col("queued"), format: number }],
});

const TILES = {
  power: "Power now", token: "Energy per good token", kept: "Kept their objectives", load: "Requests", waiting: "Waiting", instances: "Instances",
};
const tiles = Object.fromEntries(Object.entries(TILES).map(([key, label]) => {
  const [value, more] = [h("b"), h("small")];
  const mark = tag("");
  $("tiles").append(h("div", { class: "tile", id: `tile-${key}` }, h("dt", {}, label), h("dd", {}, value, mark, more)));
  return [key, { value, more, mark }];
}));

const tile = (key, value, more, quality = "") => {
  text(tiles[key].value, value);
  text(tiles[key].more, more);
  setTag(tiles[key].mark, quality);
};

// Means over a sliding span, written into the rows of a chart.
const smooth = (rows) => {
  const [arrived, judged, attained] = ["arrived_rps", "judged", "attained"].map(col);
  const span = Math.max(1, Math.round(10 / data.step));
  const wide = Math.max(1, Math.round(KEPT_S / data.step));
  let [a, j, k] = [0, 0, 0];
  rows.forEach((row, i) => {
    a += arrived(row) - (i >= span ? arrived(rows[i - span]) : 0);
    j += judged(row) - (i >= wide ? judged(rows[i - wide]) : 0);
    k += attained(row) - (i >= wide ? attained(rows[i - wide]) : 0);
    row.arrived = Math.max(0, a / Math.min(i + 1, span));
    row.kept = j > 1e-9 ? Math.min(1, k / j) : null;
  });
  return rows;
};

const sum = (rows, value) => rows.reduce((all, row) => (all === null || value(row) === null ? null : all + value(row)), 0);

const glance = (rows) => {
  const { snapshot, services } = data;
  const quality = services.some((s) => s.quality !== "measured") ? "modelled" : "measured";
  const last = rows[rows.length - 1];
  const five = rows.filter((row) => row[0] > snapshot.t - 300);
  const now = last ? total(last) : null;
  tile("power", watts(now), now === null ? "no engine model names it" : `${watts(now / Math.max(1, col("gpus")(last)))} per GPU`, now === null ? "" : quality);
  const [spent, good] = [sum(five, total), sum(five, col("good_tps"))];
  const span = five.length * data.step;
  tile("token", good > 0 && spent !== null ? joules(spent / good) : NONE, good > 0 ? `last ${span < 290 ? `${Math.round(span / 60 * 10) / 10} min` : "5 min"}, all causes` : "no good token in 5 min", good > 0 ? quality : "");
  const [judged, attained] = [sum(five, col("judged")) * data.step, sum(five, col("attained")) * data.step];
  tile("kept", judged > 0.5 ? share(attained / judged) : NONE, judged > 0.5 ? `${number(judged)} requests, last 5 min` : "none judged in 5 min");
  $("tile-kept").dataset.level = judged >= 20 && attained / judged < PROMISE ? "bad" : "";
  const mean = last ? col("mean_rps")(last) : null;
  tile("load", last ? rate(last.arrived) : NONE, mean === null ? "no forecast" : `forecast ${rate(mean)}, peak ${rate(col("upper_rps")(last))}`);
  const waiting = services.reduce((n, s) => n + s.pools.reduce((m, p) => m + p.queued, 0), 0);
  const slacks = services.flatMap((s) => s.pools).map((p) => p.slack_s).filter((s) => s !== null);
  const slack = slacks.length ? Math.min(...slacks) : null;
  tile("waiting", number(waiting), slack === null ? "no queue" : slack < 0 ? `worst is ${number(-slack)} s late` : `worst has ${number(slack)} s to spare`);
  $("tile-waiting").dataset.level = slack !== null && slack < 0 ? "bad" : "";
  const states = services.flatMap((s) => s.pools).flatMap((p) => Object.entries(p.states));
  const count = (state) => states.reduce((n, [name, c]) => n + (name === state ? c : 0), 0);
  const gpus = services.reduce((n, s) => n + (s.row[data.columns.gpus - 1] || 0), 0);
  const others = ["starting", "draining", "parked", "failed"].filter(count).map((state) => `${count(state)} ${state}`);
  const fleet = snapshot.gpus.total ? `${gpus} of ${snapshot.gpus.total} GPUs` : many(gpus, "GPU");
  tile("instances", `${count("ready")} ready`, [...others, fleet].join(" · "));
};

const renderMode = () => {
  const { snapshot } = data;
  const button = $("mode");
  button.disabled = false;
  attr(button, "data-mode", snapshot.mode);
  text(button, snapshot.mode);
  attr(button, "aria-label", `Mode: ${snapshot.mode}. Change…`);
  attr(button, "title", snapshot.mode === "enforce" ? "The controller acts on its plan" : `The controller does not act; it would do ${many(snapshot.proposed.length, "thing")} now`);
  text($("about"), `joulegate ${snapshot.version} · ${snapshot.ticks.toLocaleString("en")} ticks · configuration ${snapshot.generation} · ${many(snapshot.in_flight, "request")} in flight`);
};

const ALERTS = {
  closing: () => data.snapshot?.closing && "The gateway is shutting down: no new request is taken.",
  error: () => data.snapshot?.controller_error && `The controller failed: ${data.snapshot.controller_error}`,
  none: () => {
    const without = (data.snapshot?.services || []).filter((s) => !s.pools.some((p) => p.states.ready)).map((s) => s.name);
    return without.length > 0 && `No instance of ${without.join(", ")} is ready: requests wait, then are refused. The reasons stand under Events.`;
  },
  guard: () => data.snapshot?.services.some((s) => s.plan?.at_maximum) && "Promises were broken for some minutes: everything runs at its fastest for five.",
  lost: () => data.state === "lost" && `No live figures${data.snapshot ? ` since ${clock(data.snapshot.t)}` : ""}. ${data.why} Trying again…`,
  key: () => data.state === "key" && "This gateway asks for an admin key: set it with the button Key.",
};

const renderAlerts = () => {
  const blind = data.state === "lost" || data.state === "key"; // what was true then is not known to be true now
  const names = blind ? ["lost", "key"] : Object.keys(ALERTS);
  const words = names.map((name) => [name, ALERTS[name]()]).filter(([, told]) => told);
  const key = JSON.stringify(words);
  if (key === renderAlerts.key) return;
  renderAlerts.key = key;
  $("alerts").replaceChildren(...words.map(([name, told]) => h("p", { class: "alert", data: { name } }, told)));
};

const renderServices = () => {
  const names = data.snapshot.services.map((s) => s.name);
  const key = names.join("\n");
  if (key === renderServices.key) return;
  renderServices.key = key;
  $("service-label").hidden = names.length < 2;
  $("service").replaceChildren(h("option", { value: "" }, "All services"), ...names.map((name) => h("option", { value: name, selected: name === data.service }, name)));
  if (!names.includes(data.service)) data.service = "";
};

const render = () => {
  if (document.hidden || !data.snapshot) return;
  const { snapshot, window: span } = data;
  const rows = smooth(data.rows());
  const gap = Math.max(4, 3 * data.step);
  const unknown = data.services.every((s) => s.idle_w === null);
  renderServices();
  renderMode();
  glance(rows);
  setTag($("power-tag"), unknown ? "" : data.services.some((s) => s.quality !== "measured") ? "modelled" : "measured");
  power.show(rows, span, snapshot.t, gap, unknown ? "Energy is not known: this service names no engine model (key profile)." : "");
  load.show(rows, span, snapshot.t, gap);
  kept.show(rows, span, snapshot.t, gap, "No request was judged in this time.");
  text($("load-note"), rows.some((row) => col("mean_rps")(row) !== null) ? "A forecast is of the mean of the five minutes that follow it and is drawn at their middle; the band reaches up to the peak that room is kept for." : "Nothing is forecast for this service.");
  events.render();
  pools.render();
  orders.render();
  frontier.render();
  requests.render();
  describe(rows);
};

// What the charts show, in words, twice a minute.
let describedAt = 0;
const describe = (rows) => {
  if (Date.now() - describedAt < 30_000 || !rows.length) return;
  describedAt = Date.now();
  const totals = rows.map(total).filter((v) => v !== null);
  if (totals.length) power.summary(`Power by cause. Now ${watts(totals[totals.length - 1])}, between ${watts(Math.min(...totals))} and ${watts(Math.max(...totals))} in the time shown. Arrow keys read single moments.`);
  const arrived = rows.map((row) => row.arrived);
  load.summary(`Requests per second. Now ${rate(arrived[arrived.length - 1])}, at most ${rate(Math.max(...arrived))} in the time shown. Arrow keys read single moments.`);
};

let pending = false;
const soon = () => {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    render();
  });
};

data.addEventListener("snapshot", () => {
  events.announce(data.fresh);
  soon();
});
data.addEventListener("history", soon);
data.addEventListener("live", () => {
  const words = { wait: "Connecting", live: "Live", lost: "No connection", key: "Key needed" };
  $("live").dataset.state = data.state;
  document.body.classList.toggle("stale", data.state !== "live");
  text($("live-text"), words[data.state]);
  renderAlerts();
  if (data.state === "live") say("Live.");
});
data.addEventListener("snapshot", renderAlerts);
document.addEventListener("visibilitychange", soon);
$("window").addEventListener("change", (event) => data.show("window", Number(event.target.value)));
$("service").addEventListener("change", (event) => data.show("service", event.target.value));

data.run();
