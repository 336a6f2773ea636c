// What an operator can do here: the mode, drain and resume, the key (pools and plans: orders.js). Every action says what
// it will change and waits for a second word. The gateway decides; what it refuses is shown as it says it.

import { $, NONE, h, many, say, since, text, watts } from "./dom.js";

const MODES = {
  shadow: "Pools keep their configured number of instances. What a plan would have done is only written down.",
  advise: "The plan in force stays. Newer ones are only proposed.",
  enforce: "The newest plan is followed: instances start and drain, clocks follow the load.",
};
const LONGEST = 12;

export class Dialog {
  constructor() {
    this.node = $("dialog");
    this.node.addEventListener("click", (event) => {
      if (event.target === this.node) this.node.close();
    });
  }

  show(title, ...parts) {
    this.node.replaceChildren(
      h("header", {}, h("h2", { id: "dialog-h", tabindex: "-1" }, title), h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => this.node.close() }, "✕")),
      h("div", { class: "dialog-body" }, parts));
    if (!this.node.open) this.node.showModal();
    $("dialog-h").focus();
    this.node.scrollTop = 0;
  }

  // A form that acts once and stays open with the gateway's words when that fails.
  form(title, parts, verb, act, danger = false) {
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const go = h("button", { class: danger ? "danger" : "primary" }, verb);
    const form = h("form", { onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      problem.hidden = true;
      try {
        const said = await act(new FormData(form));
        this.node.close();
        say(said);
        toast(said);
      } catch (error) {
        problem.hidden = false;
        text(problem, error.status === 401 ? `${error.message} Set the key first (button Key).` : error.message);
      } finally {
        go.disabled = false;
      }
    } }, parts, problem, h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => this.node.close() }, "Cancel"), go));
    this.show(title, form);
    form.querySelector("input:not([type=hidden])")?.focus();
    return form;
  }
}

export const toast = (words) => {
  const note = h("p", { class: "toast" }, words);
  document.body.append(note);
  setTimeout(() => note.remove(), 6000);
};

const plain = (action) => {
  const { action: name, reason, ...rest } = action;
  const told = Object.entries(rest).filter(([, v]) => v && v !== "None" && !v.startsWith("Shape(")).map(([k, v]) => `${k.replaceAll("_", " ")} ${v}`);
  return h("li", {}, h("b", {}, name), ` ${told.join(", ")}`, reason && h("em", {}, ` ${reason}`));
};

const list = (actions) => [
  h("ul", { class: "actions" }, actions.slice(0, LONGEST).map(plain)),
  actions.length > LONGEST && h("p", { class: "note" }, `and ${actions.length - LONGEST} more`),
];

export class Control {
  constructor(data, dialog) {
    this.data = data;
    this.dialog = dialog;
    $("mode").addEventListener("click", () => this.mode());
    $("key").addEventListener("click", () => this.key());
  }

  mode() {
    const { snapshot } = this.data;
    const effect = h("div", { class: "effect", "aria-live": "polite" });
    const show = (mode) => effect.replaceChildren(...this.modeEffect(mode));
    const choices = Object.entries(MODES).map(([mode, words]) => h("label", { class: "choice" },
      h("input", { type: "radio", name: "mode", value: mode, checked: mode === snapshot.mode, onchange: () => show(mode) }),
      h("span", {}, h("b", {}, mode), h("small", {}, words))));
    show(snapshot.mode);
    this.dialog.form("Mode of the controller", [choices, effect], "Change mode", async (form) => {
      const mode = form.get("mode");
      await this.data.call("/admin/controller", "PATCH", { mode });
      return `The mode is ${mode} now.`;
    });
  }

  modeEffect(mode) {
    const { snapshot } = this.data;
    if (mode === snapshot.mode) return [h("p", { class: "note" }, `The mode is ${mode} now; nothing changes.`)];
    if (mode === "enforce") {
      if (!snapshot.proposed.length) return [h("h3", {}, "What changes"), h("p", {}, "From the next tick on the plan is followed. At this moment it asks for nothing.")];
      return [h("h3", {}, "What the next tick would do"), ...list(snapshot.proposed)];
    }
    const head = h("h3", {}, "What changes");
    if (mode === "advise") {
      return [head, h("p", {}, snapshot.mode === "enforce" ? "The plan that is in force now stays in force, with its instances and its way of setting clocks. Newer plans are only proposed." : "Pools stay at their configured numbers until a plan is approved. Plans are proposed.")];
    }
    const changes = this.configured();
    const slow = this.slowed();
    return [
      head,
      changes.length ? h("ul", {}, changes.map((words) => h("li", {}, words))) : h("p", {}, "Every pool has its configured number of instances already."),
      h("p", {}, "Clocks stay as they are now."),
      slow > 0 && h("p", { class: "warn" }, `${many(slow, "instance")} below the highest clock would stay there, whatever arrives.`),
    ].filter(Boolean);
  }

  // How pools differ from what is configured or pinned.
  configured() {
    const changes = [];
    for (const service of this.data.snapshot.services) {
      for (const pool of service.pools.filter((one) => one.managed)) {
        const live = (pool.states.ready || 0) + (pool.states.starting || 0) + (pool.states.parked || 0);
        if (live !== pool.wanted) changes.push(`${pool.name}: ${live} to ${many(pool.wanted, "instance")}`);
      }
    }
    return changes;
  }

  // Instances slower than the fastest seen of their service.
  slowed() {
    let slow = 0;
    for (const service of this.data.snapshot.services) {
      const at = service.instance_columns.indexOf("clock_mhz");
      const most = Math.max(0, ...service.clocks_mhz);
      slow += service.instances.filter((i) => i[at] && i[at] < most).length;
    }
    return slow;
  }

  instance(serviceName, id) {
    const service = this.data.snapshot.services.find((one) => one.name === serviceName);
    const row = service?.instances.find((one) => one[0] === id);
    if (!row) return;
    const i = Object.fromEntries(service.instance_columns.map((name, place) => [name, row[place]]));
    const facts = {
      Pool: i.pool, State: `${i.state} for ${since(i.since_s)}${i.reason ? `: ${i.reason}` : ""}`, TP: i.tp,
      Clock: i.clock_mhz ? `${i.clock_mhz} MHz` : "not set", Running: `${many(i.requests, "request")}, ${i.sequences} of ${i.slots} slots`,
      "KV cache": i.kv_room ? `${i.kv_tokens.toLocaleString("en")} of ${i.kv_room.toLocaleString("en")} tokens reserved` : `${i.kv_tokens.toLocaleString("en")} tokens reserved`,
      Power: i.watts === null ? NONE : `${watts(i.watts)} (${service.quality})`, Breaker: i.breaker_open ? "open: it is left alone for a while" : "closed",
      Runs: i.adopted ? "elsewhere; only its requests are managed here" : "as a child of this gateway",
    };
    const acts = i.state === "draining"
      ? [this.button(`Resume ${id}`, "It takes requests again, if an operator drained it.", "Resume", `/admin/instances/${encodeURIComponent(id)}/resume`, "POST")]
      : [
        this.button(`Drain ${id}`, `No new requests go there. ${many(i.requests, "request")} that run finish. It keeps running, and draws its idle power, until it is resumed.`, "Drain", `/admin/instances/${encodeURIComponent(id)}/drain`, "POST"),
        this.button(`Drain and move ${id}`, `No new requests go there; streams that can go on at another instance do so at once.`, "Drain and move", `/admin/instances/${encodeURIComponent(id)}/drain?move=true`, "POST"),
        this.button(`Remove ${id}`, `It drains, then ends. ${i.adopted ? "The server itself is left running." : "Its pool is pinned at one fewer."}`, "Remove", `/admin/instances/${encodeURIComponent(id)}`, "DELETE", true),
      ];
    this.dialog.show(id, h("dl", { class: "facts" }, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])), h("p", { class: "buttons" }, acts));
  }

  button(title, words, verb, path, method, danger = false) {
    return h("button", { type: "button", class: danger ? "danger" : null, onclick: () => this.dialog.form(title, [h("h3", {}, "What changes"), h("p", {}, words)], verb, async () => {
      await this.data.call(path, method);
      return `${title}: under way.`;
    }, danger) }, `${verb}…`);
  }

  key() {
    const words = this.data.state === "key" ? this.data.why : "Needed where auth.admin_keys is configured. It stays in this tab and goes to this gateway only.";
    this.dialog.form("Admin key", [
      h("p", { class: "note" }, words),
      h("label", { class: "field" }, h("span", {}, "Key"), h("input", { type: "password", name: "key", autocomplete: "off" })),
    ], "Use it", async (form) => {
      this.data.key = form.get("key").trim();
      return this.data.key ? "The key is set for this tab." : "The key is forgotten.";
    });
  }
}

