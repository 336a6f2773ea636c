// Pools with their figures, and every instance as one small tile: how full it is, its clock, its state.

import { $, NONE, attr, h, keyed, many, number, seconds, setTag, share, since, tag, text, watts } from "./dom.js";

const COLUMNS = ["Pool", "Instances", "TP", "Clock", "Running", "Waiting", "Slack", "Kept, 5 min", "Power", "Ladder", ""];
const RUNGS = { boost: "boost", spill: "spill", move: "move", shed: "shed" };

const range = (values, unit) => {
  if (!values.length) return NONE;
  const [low, high] = [values[0], values[values.length - 1]];
  return (low === high ? `${low}` : `${low}–${high}`) + unit;
};

// What a plan wants of a pool; null where no plan speaks of it.
export const planned = (service, pool) => {
  const targets = service.plan?.in_force?.targets;
  if (!targets || pool.pinned || !pool.managed) return null;
  return targets.filter((t) => t.pool === pool.name).reduce((sum, t) => sum + t.instances, 0);
};

export class PoolsView {
  constructor(data, control, orders) {
    this.data = data;
    this.control = control;
    this.orders = orders;
  }

  render() {
    const { services } = this.data;
    keyed($("pool-tables"), services, (s) => s.name, (s) => this.make(s), (node, s) => this.show(node, s));
    text($("plan-note"), services.length === 1 ? this.planWords(services[0]) : "");
  }

  planWords(service) {
    const { snapshot } = this.data;
    if (snapshot.planning !== "energy") return "The number of instances is the configured one (controller.plan: configured); no plan is made.";
    const { plan, in_force: force, next, at_maximum: harmed } = service.plan || {};
    if (!plan) return "No plan yet: one is made when requests have arrived for a while. Pools run as configured.";
    const when = next.making ? "the next one is being made" : next.due_in_s === null ? "" : `the next one comes in ${since(next.due_in_s)} at the latest`;
    const guard = harmed ? " Promises were broken for some minutes: everything runs at its fastest." : "";
    const load = (one) => `made ${since(one.age_s)} ago for ${number(one.mean_rps)} requests/s on average and ${number(one.upper_rps)} at the peak, expects ${watts(one.expected_w)} (modelled)`;
    if (!force) return `Pools run as configured (${snapshot.mode}). The newest plan, ${load(plan)}, is not followed; ${when}.${guard}`;
    const newer = snapshot.mode === "advise" && plan.age_s < force.age_s ? ` A newer plan expects ${watts(plan.expected_w)} and waits for an operator: Ask for a plan.` : "";
    return `The plan in force was ${load(force)}; ${when}.${newer}${guard}`;
  }

  make(service) {
    const body = h("tbody");
    const table = h("table", { class: "pools" },
      h("caption", { class: "sr" }, `Pools of ${service.name}`),
      h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Change"))))), body);
    const tiles = h("div", { class: "groups" });
    const node = h("div", { class: "service" }, h("h3", {}, service.name), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Pools of ${service.name}` }, table), tiles);
    Object.assign(node, { body, tiles });
    return node;
  }

  show(node, service) {
    node.querySelector("h3").hidden = this.data.snapshot.services.length === 1;
    keyed(node.body, service.pools, (p) => p.name, (p) => this.row(p), (row, p) => this.fill(row, service, p));
    const names = Object.fromEntries(service.instance_columns.map((name, place) => [name, place]));
    const groups = service.pools.map((pool) => ({ pool, mine: service.instances.filter((i) => i[names.pool] === pool.name) }));
    keyed(node.tiles, groups.filter((g) => g.mine.length), (g) => g.pool.name, (g) => this.group(g), (group, g) => {
      group.classList.toggle("small", service.instances.length > 24);
      keyed(group.tiles, g.mine, (i) => i[names.id], (i) => this.tile(service.name, i[names.id]), (tile, i) => fillTile(tile, i, names));
    });
  }

  row(pool) {
    const cells = COLUMNS.map((name, place) => h(place ? "td" : "th", { scope: place ? null : "row", data: { label: name } }));
    const row = h("tr", {}, cells);
    row.cells_ = cells;
    row.pool = pool.name;
    cells[0].append(h("b", {}, pool.name), " ", h("small", { class: "dim" }));
    cells[1].append(h("b"), h("small", { class: "dim" }));
    cells[8].append(h("b"), " ", tag("modelled"));
    cells[10].append(h("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", onclick: () => this.orders.pool(row.service, row.pool) }, "Set…"));
    cells[10].firstChild.setAttribute("aria-label", `Set instances of ${pool.name}`);
    return row;
  }

  fill(row, service, pool) {
    row.service = service.name;
    const [name, instances, tp, clock, running, waiting, slack, kept, power, ladder, act] = row.cells_;
    text(name.children[1], `answers ${pool.serves.join(", ")}`);
    const wants = planned(service, pool);
    const others = Object.entries(pool.states).filter(([state]) => state !== "ready").map(([state, n]) => `${n} ${state}`);
    text(instances.children[0], `${pool.states.ready || 0} ready`);
    const goal = pool.pinned ? `pinned at ${pool.wanted}` : wants !== null ? `plan ${wants}` : pool.managed ? `configured ${pool.wanted}` : "run elsewhere";
    text(instances.children[1], ` ${[...others, goal].join(" · ")}`);
    text(tp, range(pool.tp, ""));
    text(clock, pool.clocks_mhz.some((mhz) => mhz > 0) ? range(pool.clocks_mhz.filter((mhz) => mhz > 0), " MHz") : "not set");
    text(running, number(pool.running));
    text(waiting, number(pool.queued));
    text(slack, pool.slack_s === null ? (pool.queued ? NONE : "nothing waits") : `${pool.slack_s < 0 ? "late by " : ""}${seconds(Math.abs(pool.slack_s))}`);
    slack.dataset.level = pool.slack_s !== null && pool.slack_s < 0 ? "bad" : "";
    slack.classList.toggle("dim", pool.slack_s === null);
    text(kept, pool.judged ? `${share(pool.attainment)} of ${number(pool.judged)}` : NONE);
    kept.dataset.level = pool.judged >= 20 && pool.attainment < 0.99 ? "bad" : "";
    text(power.children[0], watts(pool.watts));
    setTag(power.children[1], pool.watts === null ? "" : service.quality);
    const rungs = service.plan?.rungs[pool.name] || [];
    text(ladder, rungs.length ? rungs.map((rung) => RUNGS[rung] || rung).join(" + ") : NONE);
    ladder.dataset.level = rungs.includes("shed") ? "bad" : rungs.length ? "notice" : "";
    act.firstChild.disabled = !pool.managed;
  }

  group({ pool }) {
    const tiles = h("ul", { class: "instances" });
    const node = h("div", { class: "group" }, h("h4", {}, pool.name), tiles);
    node.tiles = tiles;
    return node;
  }

  tile(service, id) {
    const bar = h("i");
    const tile = h("li", {}, h("button", { type: "button", "aria-haspopup": "dialog", onclick: () => this.control.instance(service, id) },
      h("span", { class: "id" }, id), h("span", { class: "load" }), h("span", { class: "mhz" }), h("span", { class: "fill", "aria-hidden": "true" }, bar)));
    tile.bar = bar;
    return tile;
  }
}

const fillTile = (tile, i, at) => {
  const button = tile.firstChild;
  const [, load, mhz] = button.children;
  const [state, open] = [i[at.state], i[at.breaker_open]];
  const words = state === "ready" ? `${i[at.sequences]}/${i[at.slots]}` : state;
  text(load, open ? "breaker open" : words);
  text(mhz, i[at.clock_mhz] ? `TP${i[at.tp]} ${i[at.clock_mhz]}` : `TP${i[at.tp]}`);
  const full = Math.max(i[at.sequences] / Math.max(1, i[at.slots]), i[at.kv_room] ? i[at.kv_tokens] / i[at.kv_room] : 0);
  const percent = `${Math.round(Math.min(1, full) * 100)}%`;
  if (tile.bar.style.width !== percent) tile.bar.style.width = percent;
  attr(button, "data-state", open ? "failed" : state);
  const kv = i[at.kv_room] ? `, ${Math.round((100 * i[at.kv_tokens]) / i[at.kv_room])} % of the KV cache` : "";
  const name = `${i[at.id]}: ${state}, ${many(i[at.requests], "request")}${kv}, TP${i[at.tp]}, ${i[at.clock_mhz] || "no set"} MHz, ${watts(i[at.watts])}`;
  attr(button, "aria-label", name);
  attr(button, "title", `${name}${i[at.reason] ? `\n${i[at.reason]}` : ""}`);
};
