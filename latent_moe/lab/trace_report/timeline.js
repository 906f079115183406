// Two canvases. A redraw touches at most a few kernels a pixel: where many share one, the longest stands for them.
const ROW = 22, LEFT = 150, BLOCK = 64;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let blocks = [], dragging = null;

// For each lane, the longest kernel of every block, and the running latest end (to find what began before the view).
function index() {
  blocks = laneRows.map((list) => {
    const longest = new Int32Array(Math.ceil(list.length / BLOCK)), latest = new Float64Array(list.length);
    for (let at = 0, end = 0; at < list.length; at++) {
      const row = list[at], block = Math.floor(at / BLOCK);
      if (at % BLOCK === 0 || rows.dur_ns[row] > rows.dur_ns[longest[block]]) longest[block] = row;
      latest[at] = end = Math.max(end, rows.start[row] + rows.dur_ns[row]);
    }
    return { longest, latest };
  });
}

function lowest(length, test) {
  let low = 0, high = length;
  while (low < high) { const middle = (low + high) >> 1; if (test(middle)) high = middle; else low = middle + 1; }
  return low;
}

function longestOf(list, block, from, to) {
  let best = list[from];
  for (let at = from; at < to; at++) {
    if (at % BLOCK === 0 && at + BLOCK <= to) {
      const row = block.longest[at / BLOCK];
      if (rows.dur_ns[row] > rows.dur_ns[best]) best = row;
      at += BLOCK - 1;
    } else if (rows.dur_ns[list[at]] > rows.dur_ns[best]) best = list[at];
  }
  return best;
}

// Calls paint(row, x, width) for what is to be seen of a lane; x in pixels from the view's begin.
function visible(list, block, scale, paint) {
  const [t0, t1] = state.view;
  let at = lowest(list.length, (place) => block.latest[place] > t0);
  while (at < list.length && rows.start[list[at]] < t1) {
    const x = Math.floor((rows.start[list[at]] - t0) * scale);
    const border = t0 + (x + 1) / scale;
    let next = at + 1;
    if (next < list.length && rows.start[list[next]] < border)
      next = Math.max(next, lowest(list.length, (place) => rows.start[list[place]] >= border));
    const row = next === at + 1 ? list[at] : longestOf(list, block, at, next);
    const left = (rows.start[row] - t0) * scale;
    paint(row, left, Math.max(1, rows.dur_ns[row] * scale));
    at = next;
  }
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(tall * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = css("--ground"); context.fillRect(0, 0, width, tall);
  context.font = "12px system-ui, 'DejaVu Sans', sans-serif"; context.textBaseline = "middle";
  return [context, width, tall];
}

const laneText = (lane) => [lane.rank !== null ? `rank ${lane.rank}` : lane.process, lane.agent, lane.queue !== null ? `queue ${lane.queue}` : null,
  lane.stream !== null && lane.stream !== lane.queue ? `stream ${lane.stream}` : null].filter((part) => part !== null).join(", ") || "device";

// Lanes with kernels in the view; hundreds of streams are shown forty at a time, the busiest first.
const MOST_LANES = 40;
let lanes = [];
function chooseLanes() {
  const total = laneRows.map((list) => list.reduce((sum, row) => sum + rows.dur_ns[row], 0));
  const order = total.map((_, lane) => lane).sort((a, b) => total[b] - total[a]);
  lanes = order.slice(0, MOST_LANES).sort((a, b) => a - b);
}

function drawTimeline() {
  const canvas = element("timeline"), began = performance.now();
  const [context, width] = prepare(canvas, Math.max(1, lanes.length) * ROW + 26);
  const room = Math.max(width - LEFT, 10), [t0, t1] = state.view, scale = room / (t1 - t0);
  const some = filtered(), faint = css("--faint"), ink = css("--ink");
  const tints = Object.fromEntries(Object.entries(PALETTE));
  lanes.forEach((lane, place) => {
    const y = place * ROW + 24, list = laneRows[lane];
    context.save(); context.beginPath(); context.rect(LEFT, y, room, ROW); context.clip();
    visible(list, blocks[lane], scale, (row, x, wide) => {
      context.fillStyle = some && !keep[row] ? faint : tints[kindOf(rows.name[row])];
      context.fillRect(LEFT + x, y + 2, wide > 3 ? wide - 0.5 : wide, ROW - 5);
      if (wide > 60) {
        context.fillStyle = "#ffffff"; context.save(); context.beginPath(); context.rect(LEFT + Math.max(x, 0), y, Math.min(wide, room), ROW); context.clip();
        context.fillText(nameOf(rows.name[row]).slice(0, 120), LEFT + Math.max(x, 0) + 4, y + ROW / 2); context.restore();
      }
    });
    if (some) strongest(list, lane, scale, (row, x, wide) => {
      context.fillStyle = tints[kindOf(rows.name[row])]; context.fillRect(LEFT + x, y + 2, wide, ROW - 5);
    });
    context.restore();
    context.fillStyle = ink; context.fillText(laneText(data.lanes[lane]).slice(0, 24), 4, y + ROW / 2);
  });
  ticks(context, room, scale, ink);
  if (state.time) band(context, state.time, scale, lanes.length * ROW + 24);
  if (state.at >= 0) mark(context, scale);
  canvas.dataset.redrawMs = (performance.now() - began).toFixed(2);
}

// What a filter keeps shows above what it greys, also where both share a pixel.
function strongest(list, lane, scale, paint) {
  const [t0, t1] = state.view;
  let last = -1;
  if (kept.length > 20000) return;
  for (let at = lowest(kept.length, (place) => rows.start[kept[place]] + span() / 50 > t0); at < kept.length; at++) {
    const row = kept[at];
    if (rows.start[row] >= t1) break;
    if (rows.lane[row] !== lane) continue;
    const x = (rows.start[row] - t0) * scale, wide = Math.max(1, rows.dur_ns[row] * scale);
    if (Math.floor(x + wide) === last) continue;
    last = Math.floor(x + wide);
    paint(row, x, wide);
  }
}

function ticks(context, room, scale, ink) {
  const [t0, t1] = state.view, wanted = (t1 - t0) / 8, power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= wanted) || wanted;
  context.fillStyle = ink;
  for (let t = Math.ceil(t0 / step) * step; t < t1; t += step) {
    const x = LEFT + (t - t0) * scale;
    context.fillRect(x, 16, 1, 6); context.fillText(time(t), x + 3, 9);
  }
}

function band(context, [a, b], scale, height) {
  context.fillStyle = "rgba(11, 87, 164, .16)";
  context.fillRect(LEFT + (a - state.view[0]) * scale, 18, Math.max(1, (b - a) * scale), height);
}

function mark(context, scale) {
  const place = lanes.indexOf(rows.lane[state.at]);
  if (place < 0) return;
  context.strokeStyle = css("--ink"); context.lineWidth = 2;
  context.strokeRect(LEFT + (rows.start[state.at] - state.view[0]) * scale - 1, place * ROW + 25, Math.max(3, rows.dur_ns[state.at] * scale + 2), ROW - 3);
}

function look(t0, t1) {
  const wide = Math.min(Math.max(t1 - t0, 20), span() * 1.0), begin = Math.min(Math.max(t0, -wide * 0.05), span() - wide * 0.95);
  const all = wide >= span();
  update({ view: all ? [0, span()] : [begin, begin + wide] }, false);
}
function zoom(factor, center) {
  const [t0, t1] = state.view, at = center ?? (t0 + t1) / 2;
  look(at - (at - t0) * factor, at + (t1 - at) * factor);
}
const pan = (share) => { const [t0, t1] = state.view, by = (t1 - t0) * share; look(t0 + by, t1 + by); };

function choose(row, center = true) {
  state.at = row;
  const start = rows.start[row], dur = rows.dur_ns[row], [t0, t1] = state.view;
  element("now").textContent = `${nameOf(rows.name[row])}: ${kindOf(rows.name[row])}, begins at ${time(start)}, takes ${time(dur)} (${number(dur)} ns)` +
    (rows.shape[row] >= 0 ? `, M N K ${data.shapes[rows.shape[row]].join(" ")}` : "") +
    (rows.region[row] >= 0 ? `, in ${data.regions[rows.region[row]]}` : "") + `; ${laneText(data.lanes[rows.lane[row]])}`;
  if (center && (start < t0 || start + dur > t1)) look(start - (t1 - t0) / 2, start + (t1 - t0) / 2);
  else update({}, false);
}
function stepTo(direction) {
  if (!kept.length) return;
  const from = state.at >= 0 ? rows.start[state.at] : state.view[0];
  let place = lowest(kept.length, (at) => rows.start[kept[at]] > from || (rows.start[kept[at]] === from && kept[at] >= state.at));
  if (state.at >= 0) place += direction === 1 ? (kept[place] === state.at ? 1 : 0) : -1;
  choose(kept[Math.min(Math.max(place, 0), kept.length - 1)]);
}

function keyboard(event) {
  const acts = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, span()),
    n: () => stepTo(1), p: () => stepTo(-1), f: () => (state.time ? look(...state.time) : state.at >= 0 && look(rows.start[state.at] - rows.dur_ns[state.at], rows.start[state.at] + 2 * rows.dur_ns[state.at])),
    Escape: () => update({ time: null, dur: null, name: -1 }) };
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
  event.preventDefault(); acts[event.key]();
}

function pointer(canvas) {
  const t = (event) => { const box = canvas.getBoundingClientRect(); const room = box.width - LEFT;
    return state.view[0] + ((event.clientX - box.left - LEFT) / room) * (state.view[1] - state.view[0]); };
  const under = (event) => { const box = canvas.getBoundingClientRect(), lane = lanes[Math.floor((event.clientY - box.top - 24) / ROW)];
    if (lane === undefined) return -1;
    const list = laneRows[lane], at = t(event), slack = (2 * (state.view[1] - state.view[0])) / box.width;
    for (let place = lowest(list.length, (p) => rows.start[list[p]] > at + slack) - 1, tries = 0; place >= 0 && tries < 400; place--, tries++)
      if (rows.start[list[place]] + rows.dur_ns[list[place]] >= at - slack) return list[place];
    return -1; };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, t(event)); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId);
    dragging = { x: event.clientX, t: t(event), view: [...state.view], brush: event.shiftKey, moved: false }; });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragging) return;
    if (Math.abs(event.clientX - dragging.x) > 3) dragging.moved = true;
    if (!dragging.moved) return;
    if (dragging.brush) { const now = t(event); update({ time: [Math.min(now, dragging.t), Math.max(now, dragging.t)] }); return; }
    const by = ((dragging.x - event.clientX) / (canvas.clientWidth - LEFT)) * (dragging.view[1] - dragging.view[0]);
    look(dragging.view[0] + by, dragging.view[1] + by); });
  canvas.addEventListener("pointerup", (event) => { if (dragging && !dragging.moved) { const row = under(event); if (row >= 0) choose(row, false); } dragging = null; });
  canvas.addEventListener("keydown", keyboard);
}

// Points of the scatter: one a pixel at most, so a million kernels draw as fast as a thousand.
let painted = new Uint8Array(0);
const scatterY = (dur, tall, low, high) => tall - 18 - ((Math.log10(Math.max(dur, 1)) - low) / (high - low)) * (tall - 30);
let scatterEnds = [0, 6];
function drawScatter() {
  const [context, width, tall] = prepare(element("scatter"));
  const room = Math.max(width - LEFT, 10), [t0, t1] = state.view, scale = room / (t1 - t0), ink = css("--ink");
  let low = Infinity, high = -Infinity;
  for (const row of kept) { const dur = Math.max(rows.dur_ns[row], 1); if (dur < low) low = dur; if (dur > high) high = dur; }
  [low, high] = kept.length ? [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high + 1))] : [0, 1];
  if (high === low) high += 1;
  scatterEnds = [low, high];
  context.fillStyle = ink;
  for (let power = low; power <= high; power++) context.fillText(time(10 ** power), 60, scatterY(10 ** power, tall, low, high));
  const across = Math.ceil(width);
  if (painted.length !== across * Math.ceil(tall)) painted = new Uint8Array(across * Math.ceil(tall)); else painted.fill(0);
  for (const row of kept) {
    const x = (rows.start[row] - t0) * scale;
    if (x < 0 || x > room) continue;
    const y = scatterY(rows.dur_ns[row], tall, low, high), pixel = Math.floor(y) * across + Math.floor(LEFT + x);
    if (painted[pixel]) continue;
    painted[pixel] = 1;
    context.fillStyle = PALETTE[kindOf(rows.name[row])]; context.fillRect(LEFT + x - 1, y - 1, 3, 3);
  }
}

function brushScatter(canvas) {
  let from = null;
  const place = (event) => { const box = canvas.getBoundingClientRect(), [low, high] = scatterEnds, tall = box.height;
    return { t: state.view[0] + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (state.view[1] - state.view[0]),
      dur: 10 ** (low + ((tall - 18 - (event.clientY - box.top)) / (tall - 30)) * (high - low)) }; };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); from = place(event); });
  canvas.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = place(event), begin = from; from = null;
    if (Math.abs(to.t - begin.t) < (state.view[1] - state.view[0]) / 500) return;
    update({ time: [Math.min(begin.t, to.t), Math.max(begin.t, to.t)], dur: [Math.min(begin.dur, to.dur), Math.max(begin.dur, to.dur)] }); });
}
