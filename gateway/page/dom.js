// Making and changing elements, and words for numbers. No markup is ever parsed from text, so nothing that a
// client sent can become part of the page.

export const $ = (id) => document.getElementById(id);

const put = (node, props) => {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
};

const fill = (node, children) => {
  for (const child of children.flat(3)) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
  return node;
};

export const h = (tag, props = {}, ...children) => {
  const node = document.createElement(tag);
  put(node, props);
  return fill(node, children);
};

export const svg = (tag, props = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  put(node, props);
  return fill(node, children);
};

// Writes only what differs: the browser lays out nothing for a figure that stays.
export const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};
export const attr = (node, name, value) => {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
};

// Keeps one element per key, in order; `make` builds a new one, `show` writes its present figures.
export const keyed = (parent, items, keyOf, make, show) => {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = old.get(key);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = key;
    }
    old.delete(key);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
    show(node, item);
  }
  for (const gone of old.values()) gone.remove();
};

export const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

// Made once: a formatter costs a hundred times what it is to use it.
const places = [0, 1, 2, 3, 4].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const toSecond = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const toMinute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export const number = (value, digits = 3) => {
  if (!known(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  return places[Math.max(0, Math.min(4, digits - 1 - Math.floor(Math.log10(size))))].format(value);
};

const scaled = (value, unit, digits) => {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6, digits)} M${unit}`;
  if (size >= 1e4 || (size >= 1e3 && unit === "W")) return `${number(value / 1e3, digits)} k${unit}`;
  return `${number(value, digits)} ${unit}`;
};

export const watts = (value) => scaled(value, "W", 3);
export const joules = (value) => scaled(value, "J", 3);
export const rate = (value) => (known(value) ? `${number(value)}/s` : NONE);
export const share = (value) => {
  if (!known(value)) return NONE;
  const percent = Math.floor(value * 1e4) / 100; // 99.996 % is not 100 %
  return `${percent.toFixed(percent >= 99.95 && percent < 100 ? 2 : percent === 100 ? 0 : 1)} %`;
};
export const seconds = (value) => {
  if (!known(value)) return NONE;
  if (Math.abs(value) < 1) return `${number(value * 1000, 3)} ms`;
  return `${number(value, 3)} s`;
};
export const since = (value) => {
  if (!known(value)) return NONE;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${number(value / 3600, 2)} h`;
};
export const clock = (t, fine = true) => (fine ? toSecond : toMinute).format(t * 1000);
export const many = (count, one, more = `${one}s`) => `${count} ${count === 1 ? one : more}`;

// How a figure is known; every energy figure carries one.
export const tag = (quality) => h("span", { class: "tag", data: { quality } }, quality);
export const setTag = (node, quality) => {
  text(node, quality || "");
  node.dataset.quality = quality || "";
  node.hidden = !quality;
};

let saidAt = 0;
// For people who hear the page: events that matter, never figures that change each second.
export const say = (words) => {
  const now = Date.now();
  const node = $("said");
  text(node, now - saidAt < 4000 && node.textContent ? `${node.textContent} ${words}`.slice(-300) : words);
  saidAt = now;
};
