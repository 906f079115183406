"use strict";
// The recording: data (figures, dictionaries) and rows (typed columns), the filters over them, and the state in the URL.
const data = JSON.parse(document.getElementById("data").textContent);
const PLANES = { since_ns: 6, dur_ns: 6, name: 3, lane: 2, region: 3, shape: 3 };
const PALETTE = { gemm: "#0072B2", collective: "#E69F00", moe: "#009E73", attention: "#CC79A7", norm: "#56B4E9", elementwise: "#D55E00",
  reduction: "#8C8C8C", copy: "#B8A200", other: "#5a4fcf", unknown: "#777777" };
const rows = { n: 0 };
const state = { view: [0, 1], time: null, dur: null, hidden: new Set(), text: "", name: -1, sort: ["total_ns", -1], at: -1 };
const listeners = [];
let keep = new Uint8Array(0), kept = new Int32Array(0), laneRows = [];

const element = (id) => document.getElementById(id);
const kindOf = (code) => (code >= 0 && data.names[code].kind) || "unknown";
const nameOf = (code) => (code >= 0 ? data.names[code].name : "(no name)");
const span = () => Math.max(data.span_ns, 1);

async function unpack() {
  const packed = atob(element("packed").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const n = rows.n = data.rows;
  let at = 0;
  for (const [column, width] of Object.entries(PLANES)) {
    const values = rows[column] = column.endsWith("_ns") ? new Float64Array(n) : new Int32Array(n);
    for (let byte = 0, weight = 1; byte < width; byte++, weight *= 256, at += n)
      for (let i = 0; i < n; i++) values[i] += planes[at + i] * weight;
  }
  rows.start = new Float64Array(n);
  for (let i = 0, sum = 0; i < n; i++) {
    rows.start[i] = sum += rows.since_ns[i];
    rows.name[i] -= 1; rows.region[i] -= 1; rows.shape[i] -= 1;
  }
  keep = new Uint8Array(n);
  laneRows = data.lanes.map(() => []);
  for (let i = 0; i < n; i++) laneRows[rows.lane[i]].push(i);
  laneRows = laneRows.map((list) => Int32Array.from(list));
}

// Names that the search, the kinds and the chosen name leave.
function keptNames() {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  return data.names.map((entry, code) => {
    if (state.name >= 0 && code !== state.name) return 0;
    if (state.hidden.has(entry.kind || "unknown")) return 0;
    const text = entry.name.toLowerCase();
    return words.every((word) => text.includes(word)) ? 1 : 0;
  });
}

function filter() {
  const names = keptNames(), [t0, t1] = state.time || [-Infinity, Infinity], [d0, d1] = state.dur || [0, Infinity];
  const list = new Int32Array(rows.n);
  let count = 0;
  for (let i = 0; i < rows.n; i++) {
    const start = rows.start[i], dur = rows.dur_ns[i];
    const fits = names[rows.name[i]] && start <= t1 && start + dur >= t0 && dur >= d0 && dur <= d1;
    keep[i] = fits ? 1 : 0;
    if (fits) list[count++] = i;
  }
  kept = list.subarray(0, count);
}

const filtered = () => state.text !== "" || state.hidden.size > 0 || state.name >= 0 || state.time !== null || state.dur !== null;

let pending = false;
let refiltered = false;
function update(changes, refilter = true) {
  Object.assign(state, changes);
  refiltered = refiltered || refilter;
  if (refilter) filter();
  writeUrl();
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    const all = refiltered;
    refiltered = false;
    listeners.forEach((draw) => draw(all));
  });
}

let urlTimer = 0;
function writeUrl() {
  clearTimeout(urlTimer);
  urlTimer = setTimeout(() => {
    const parts = new URLSearchParams();
    if (state.view[0] !== 0 || state.view[1] !== span()) parts.set("view", state.view.map(Math.round).join(","));
    if (state.time) parts.set("time", state.time.map(Math.round).join(","));
    if (state.dur) parts.set("dur", state.dur.map(Math.round).join(","));
    if (state.hidden.size) parts.set("hide", [...state.hidden].join(","));
    if (state.text) parts.set("q", state.text);
    if (state.name >= 0) parts.set("name", state.name);
    if (state.sort.join() !== "total_ns,-1") parts.set("sort", state.sort.join(","));
    try { history.replaceState(null, "", "#" + parts.toString()); } catch { /* a page inside a notebook has no address of its own */ }
  }, 120);
}

function readUrl() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const pair = (key) => {
    const values = (parts.get(key) || "").split(",").map(Number);
    return values.length === 2 && values.every(Number.isFinite) && values[1] >= values[0] ? values : null;
  };
  state.view = pair("view") || [0, span()];
  state.time = pair("time");
  state.dur = pair("dur");
  state.hidden = new Set((parts.get("hide") || "").split(",").filter((kind) => kind in PALETTE));
  state.text = parts.get("q") || "";
  const name = Number(parts.get("name") ?? -1);
  state.name = Number.isInteger(name) && name < data.names.length ? name : -1;
  const [column, direction] = (parts.get("sort") || "total_ns,-1").split(",");
  state.sort = [column, direction === "1" ? 1 : -1];
}

// Text only: whatever a recording calls its kernels, it never becomes markup.
function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties))
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const show = (id, ...children) => element(id).replaceChildren(...children.filter((child) => child !== null));

const number = (value) => Math.round(value).toLocaleString("en-US");
function time(ns) {
  if (ns === null || ns === undefined) return "unknown";
  const [size, unit] = Math.abs(ns) >= 1e9 ? [1e9, "s"] : Math.abs(ns) >= 1e6 ? [1e6, "ms"] : [1e3, "us"];
  return `${(ns / size).toLocaleString("en-US", { maximumFractionDigits: 3 })} ${unit}`;
}
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(2)} %` : "-");
