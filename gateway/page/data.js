// What the page knows: the newest snapshot, the series, the events. Owns the connection and the admin key.
// Emits "snapshot", "history", "live" (connection state changed) and "key" (a key is asked for).

const BASE = "/admin/dashboard";
const KEY = "joulegate-admin-key";
const RETRY_S = [1, 1, 2, 4, 8, 15];
const STALE_MS = 4000;

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export class Data extends EventTarget {
  constructor() {
    super();
    this.snapshot = null;
    this.columns = {};
    this.step = 1;
    this.series = new Map(); // service -> rows
    this.events = new Map(); // number -> event
    this.window = 600;
    this.service = ""; // "" = all
    this.state = "wait"; // wait, live, lost, key
    this.why = "";
    this.heard = 0;
    this.tries = 0;
    this.histories = 0;
  }

  get key() {
    return sessionStorage.getItem(KEY) || "";
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
    this.retry?.();
  }

  headers(more = {}) {
    return this.key ? { authorization: `Bearer ${this.key}`, ...more } : more;
  }

  // One call to the admin API: the answer's JSON, or Refused with the gateway's own words.
  async call(path, method = "GET", body = undefined) {
    let answer;
    try {
      answer = await fetch(path, {
        method,
        headers: this.headers(body === undefined ? {} : { "content-type": "application/json" }),
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch {
      throw new Refused(0, "The gateway cannot be reached.", "unreachable");
    }
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) return said;
    const error = said.error || {};
    throw new Refused(answer.status, error.message || `The gateway answered ${answer.status}.`, error.code);
  }

  show(name, value) {
    this[name] = value;
    if (name === "window") this.loadHistory();
    else this.dispatchEvent(new Event("history"));
  }

  // Runs for ever: history, then the stream; after a break again from the start.
  async run() {
    setInterval(() => this.watch(), 1000);
    for (;;) {
      try {
        await this.loadHistory(true);
        await this.listen();
        this.become("lost", "The gateway ended the connection.");
      } catch (error) {
        if (error.status === 401) this.become("key", error.message);
        else if (error.name !== "AbortError") this.become("lost", error.message);
      }
      const pause = RETRY_S[Math.min(this.tries, RETRY_S.length - 1)];
      this.tries += 1;
      await this.pause(this.state === "key" ? 3600 : pause);
    }
  }

  pause(seconds) {
    return new Promise((done) => {
      const timer = setTimeout(done, seconds * 1000);
      this.retry = () => {
        clearTimeout(timer);
        done();
      };
    });
  }

  become(state, why = "") {
    if (this.state === state && this.why === why) return;
    this.state = state;
    this.why = why;
    this.dispatchEvent(new Event("live"));
  }

  watch() {
    if (this.state === "live" && Date.now() - this.heard > STALE_MS) {
      this.become("lost", "The gateway has been silent for some seconds.");
      this.abort?.abort();
    }
    const refresh = this.step * 1000;
    if (this.state === "live" && this.step > 1 && Date.now() - this.histories > refresh) this.loadHistory();
  }

  async loadHistory(raise = false) {
    this.histories = Date.now();
    const window = this.window;
    try {
      const told = await this.call(`${BASE}/history?window_s=${window}`);
      if (window !== this.window) return;
      this.columns = Object.fromEntries(told.columns.map((name, place) => [name, place + 1]));
      this.step = told.step_s;
      this.series = new Map(Object.entries(told.services));
      for (const event of told.events) this.events.set(event.n, event);
      this.dispatchEvent(new Event("history"));
    } catch (error) {
      if (raise) throw error;
    }
  }

  // A reader of server-sent events that can carry the key, which EventSource cannot.
  async listen() {
    this.abort = new AbortController();
    const answer = await fetch(`${BASE}/stream`, { headers: this.headers(), signal: this.abort.signal });
    if (!answer.ok) {
      const said = await answer.json().catch(() => ({}));
      throw new Refused(answer.status, said.error?.message || `The gateway answered ${answer.status}.`);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const event = rest.slice(0, end);
        rest = rest.slice(end + 2);
        if (event.startsWith("data: ")) this.take(JSON.parse(event.slice(6)));
      }
    }
  }

  take(snapshot) {
    const restarted = this.snapshot && snapshot.newest_event < this.snapshot.newest_event;
    if (restarted) {
      this.events.clear();
      this.loadHistory();
    }
    this.heard = Date.now();
    this.tries = 0;
    this.snapshot = snapshot;
    this.fresh = snapshot.events.filter((event) => !this.events.has(event.n));
    for (const event of snapshot.events) this.events.set(event.n, event);
    while (this.events.size > 1500) this.events.delete(this.events.keys().next().value);
    if (this.step === 1) this.append(snapshot);
    this.become("live");
    this.dispatchEvent(new Event("snapshot"));
  }

  append(snapshot) {
    const oldest = snapshot.t - this.window;
    for (const one of snapshot.services) {
      const rows = this.series.get(one.name) || [];
      if (!rows.length || snapshot.t - rows[rows.length - 1][0] > 0.5) rows.push([snapshot.t, ...one.row]);
      while (rows.length && rows[0][0] < oldest) rows.shift();
      this.series.set(one.name, rows);
    }
  }

  get services() {
    const all = this.snapshot?.services || [];
    return this.service ? all.filter((one) => one.name === this.service) : all;
  }

  // Rows of what is shown: one service's, or the sum over all. An unknown value makes the sum unknown.
  rows() {
    const shown = [...this.series].filter(([name]) => !this.service || name === this.service).map(([, rows]) => rows);
    if (shown.length === 1) return shown[0];
    const sums = new Map();
    for (const rows of shown) {
      for (const row of rows) {
        const slot = Math.round(row[0] / this.step);
        const before = sums.get(slot);
        if (before === undefined) sums.set(slot, row.slice());
        else for (let i = 1; i < row.length; i += 1) before[i] = before[i] === null || row[i] === null ? null : before[i] + row[i];
      }
    }
    return [...sums.values()].sort((a, b) => a[0] - b[0]);
  }

  eventsShown(kinds) {
    const oldest = (this.snapshot?.t || 0) - this.window;
    return [...this.events.values()].filter(
      (e) => e.t >= oldest && kinds.has(e.kind) && (!this.service || !e.service || e.service === this.service),
    );
  }
}
