// What operators order for a while (pins, floors, ceilings, pauses) and plans by hand. Says what will change, asks, and
// lists what holds with the time that it still does.

import { $, h, keyed, many, since, tag, text, watts } from "./dom.js";

const SPANS = { 3600: "an hour", 14400: "four hours", 86400: "a day", 604800: "a week", 0: "until it is let go" };
const KINDS = {
  pin: "exactly so many, whatever a plan says",
  floor: "at least so many",
  ceiling: "at most so many",
};

export const liveOf = (pool) => (pool.states.ready || 0) + (pool.states.starting || 0) + (pool.states.parked || 0);

export class Orders {
  constructor(data, dialog) {
    this.data = data;
    this.dialog = dialog;
    this.list = h("ul", { class: "orders" });
    const pause = h("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", onclick: () => this.pause() }, "Pause planning…");
    const ask = h("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", onclick: () => this.propose() }, "Ask for a plan…");
    this.buttons = h("p", { class: "buttons plan-buttons" }, ask, pause);
    $("pools-h").after(this.buttons);
    $("plan-note").after(this.list);
  }

  render() {
    const { snapshot } = this.data;
    this.buttons.hidden = snapshot.planning !== "energy";
    keyed(this.list, snapshot.overrides, (one) => one.id, (one) => this.item(one), (node, one) => {
      text(node.children[1], ` ${since(one.left_s)} left`);
    });
    this.list.hidden = !snapshot.overrides.length;
  }

  item(one) {
    const what = { pin: "pinned", floor: "at least", ceiling: "at most", pause: "planning paused", drain: "drained", exclude_gpu: "taken out" }[one.kind];
    const where = one.pool || one.instance || one.gpu || one.service || "all services";
    const amount = [one.instances !== null && many(one.instances, "instance"), one.clock_mhz && `${one.clock_mhz} MHz`].filter(Boolean).join(", ");
    return h("li", {}, h("b", {}, `${where}: ${what}${amount ? ` ${amount}` : ""}`), h("span", { class: "dim" }), h("span", { class: "dim" }, ` by ${one.by}${one.reason ? `: ${one.reason}` : ""} `),
      h("button", { type: "button", class: "quiet", onclick: () => this.lift(one, `${where}: ${what}`) }, "Lift…"));
  }

  lift(one, name) {
    this.dialog.form("Lift an order", [h("p", {}, `“${name}” is over at once; from the next tick on the plan decides again.`)], "Lift it", async () => {
      await this.data.call(`/admin/overrides/${encodeURIComponent(one.id)}`, "DELETE");
      return "The order is lifted.";
    });
  }

  pause() {
    this.dialog.form("Pause planning", [
      h("p", {}, "The plan in force stays and no other is made; clocks rest. The emergency ladder and the guard still act, and what dies is replaced."),
      this.span(["3600", "14400", "86400"]), this.reason(),
    ], "Pause", async (form) => {
      await this.data.call("/admin/overrides", "POST", { kind: "pause", service: this.data.service, expires_s: Number(form.get("span")), reason: form.get("reason") });
      return "Planning is paused.";
    });
  }

  span(choices) {
    return h("label", { class: "field" }, h("span", {}, "For"), h("select", { name: "span" }, choices.map((value) => h("option", { value }, SPANS[value]))));
  }

  reason() {
    return h("label", { class: "field" }, h("span", {}, "Because"), h("input", { name: "reason", maxlength: "256", placeholder: "for those who read it later", autocomplete: "off" }));
  }

  pool(serviceName, poolName) {
    const service = this.data.snapshot.services.find((one) => one.name === serviceName);
    const pool = service?.pools.find((one) => one.name === poolName);
    if (!pool) return;
    const live = liveOf(pool);
    const effect = h("div", { class: "effect", "aria-live": "polite" });
    const count = h("input", { type: "number", name: "instances", min: "0", max: "1024", required: true, value: String(pool.pinned ? pool.wanted : live), oninput: () => show() });
    const kinds = h("select", { name: "kind", onchange: () => show() }, Object.entries(KINDS).map(([value, words]) => h("option", { value }, `${value}: ${words}`)));
    const show = () => effect.replaceChildren(...poolEffect(service, pool, live, Number(count.value), kinds.value));
    show();
    const path = `/admin/services/${encodeURIComponent(serviceName)}/pools/${encodeURIComponent(poolName)}`;
    this.dialog.form(`Instances of ${poolName}`, [
      h("label", { class: "field" }, h("span", {}, "Instances"), count), h("label", { class: "field" }, h("span", {}, "Meant as"), kinds),
      this.span(Object.keys(SPANS).sort((a, b) => (a === "0") - (b === "0") || a - b)), this.reason(), effect,
      pool.pinned && h("p", {}, h("button", { type: "button", onclick: () => this.release(path, poolName) }, "Let the plan have it again")),
    ], "Order it", async (form) => {
      const instances = Number(form.get("instances"));
      const [kind, span] = [form.get("kind"), Number(form.get("span"))];
      if (kind === "pin" && span === 0) await this.data.call(path, "PATCH", { instances });
      else await this.data.call("/admin/overrides", "POST", { kind, service: serviceName, pool: poolName, instances, expires_s: span || 30 * 86400, reason: form.get("reason") });
      return `${poolName}: ${kind} at ${many(instances, "instance")}, ${span ? `for ${SPANS[span]}` : kind === "pin" ? SPANS[0] : "for 30 days"}.`;
    });
  }

  release(path, poolName) {
    this.dialog.form(`Let ${poolName} go`, [h("p", {}, "The next plan decides how many instances it has.")], "Let it go", async () => {
      await this.data.call(path, "PATCH", { pinned: false });
      return `${poolName} is the plan's again.`;
    });
  }

  // A plan made at this moment, beside the one in force. Nothing changes until it is applied.
  async propose() {
    this.dialog.show("A plan for this moment", h("p", { class: "note" }, "Making it…"));
    let made;
    try {
      made = await this.data.call("/admin/plan/propose", "POST", this.data.service ? { services: [this.data.service] } : {});
    } catch (error) {
      this.dialog.show("A plan for this moment", h("p", { class: "problem", role: "alert" }, error.message));
      return;
    }
    const before = made.in_force_w === null ? "" : `; the plan in force expects ${watts(made.in_force_w)}`;
    const targets = Object.entries(made.plans).flatMap(([name, plan]) => plan.targets.map((t) => h("li", {}, `${name}/${t.pool}: ${t.instances} × TP${t.tp} at ${t.clock_mhz} MHz`)));
    const mode = this.data.snapshot.mode;
    const after = { enforce: "In enforce it is followed until the next plan is made; a pause holds it.", advise: "In advise it is followed until another one is applied.", shadow: "In shadow no plan is followed: applying it is refused." }[mode];
    this.dialog.form("A plan for this moment", [
      h("p", {}, `It expects ${watts(made.expected_w)}${before} `, tag("modelled")),
      h("ul", {}, targets),
      h("div", { class: "effect" }, h("h3", {}, "What changes"), made.changes.length ? h("ul", {}, made.changes.map((line) => h("li", {}, line.replace("->", "→")))) : h("p", {}, "No count changes; clocks may."), h("p", { class: "note" }, after)),
    ], "Apply it", async () => {
      await this.data.call("/admin/plan/apply", "POST", { id: made.id });
      return `${made.id} is followed from the next tick on.`;
    });
  }
}

const poolEffect = (service, pool, live, wanted, kind) => {
  if (!Number.isInteger(wanted) || wanted < 0) return [h("p", { class: "warn" }, "A whole number from 0 on.")];
  const holds = (kind === "floor" && live >= wanted) || (kind === "ceiling" && live <= wanted);
  const more = holds ? 0 : wanted - live;
  const tp = pool.tp[pool.tp.length - 1];
  const each = service.idle_w === null ? null : service.idle_w * tp;
  const words = [];
  if (more > 0) words.push(`${many(more, "instance")} will be started${tp ? ` (TP${tp})` : ""}${each ? `; idle they add ${watts(more * each)} (modelled)` : ""}.`);
  if (more < 0) words.push(`${many(-more, "instance")} will drain: what runs there finishes, then ${more === -1 ? "it ends" : "they end"}${each ? `; idle that saves ${watts(-more * each)} (modelled)` : ""}.`);
  if (more === 0) words.push("The number stays as it is for now.");
  if (wanted === 0 && kind !== "floor") words.push("Its requests then go to pools that serve longer answers.");
  words.push({ pin: "A pin holds against every plan.", floor: "No plan goes below a floor.", ceiling: "No plan goes above a ceiling; a floor wins over it." }[kind]);
  return [h("h3", {}, "What changes"), h("p", {}, words.join(" "))];
};
