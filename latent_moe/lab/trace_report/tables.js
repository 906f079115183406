// Every table: cells are text, columns sort by a button in their head, and a long table shows its first rows.
const MOST_ROWS = 300;
function table(head, body, caption, sort = null) {
  const cells = head.map(([text, key]) => make("th", { scope: "col", "aria-sort": sort && sort[0] === key ? (sort[1] < 0 ? "descending" : "ascending") : null },
    sort && key ? make("button", { type: "button", onclick: () => update({ sort: [key, state.sort[0] === key ? -state.sort[1] : -1] }) }, text) : text));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...cells)), make("tbody", {}, ...body)));
}
const row = (...cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell ?? "unknown")));
const paragraph = (...text) => make("p", {}, ...text);

// Groups of the kept kernels by name, as `kernels --json --by name` has them when nothing is filtered.
function byName() {
  if (!filtered() || rows.n === 0) {
    const codes = new Map(data.names.map((entry, code) => [entry.name, code])), names = keptNames();
    return data.by.name.filter((entry) => !codes.has(entry.key) || names[codes.get(entry.key)]).map((entry) => ({ ...entry, code: codes.get(entry.key) ?? -1 }));
  }
  const groups = new Map();
  for (const index of kept) {
    const code = rows.name[index];
    if (!groups.has(code)) groups.set(code, []);
    groups.get(code).push(rows.dur_ns[index]);
  }
  return [...groups].map(([code, durations]) => {
    const sorted = Float64Array.from(durations).sort(), n = sorted.length, total = sorted.reduce((sum, ns) => sum + ns, 0);
    return { code, key: nameOf(code), calls: n, total_ns: total, mean_ns: total / n, median_ns: (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2, p90_ns: sorted[Math.ceil(0.9 * n) - 1], max_ns: sorted[n - 1] };
  });
}

function drawKernels() {
  const groups = byName(), [key, direction] = state.sort, total = groups.reduce((sum, group) => sum + group.total_ns, 0);
  const value = (group) => (key === "key" ? group.key : key === "kind" ? kindOf(group.code) : group[key] ?? -1);
  groups.sort((a, b) => direction * (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0));
  const body = groups.slice(0, MOST_ROWS).map((group) => {
    const made = row(make("button", { type: "button", onclick: () => update({ name: state.name === group.code ? -1 : group.code }) }, group.key), kindOf(group.code),
      (group.code >= 0 && data.names[group.code].library) || "unknown", number(group.calls), time(group.total_ns), percent(group.total_ns, total), time(group.mean_ns), time(group.median_ns), time(group.p90_ns), time(group.max_ns));
    made.dataset.calls = group.calls; made.dataset.totalNs = group.total_ns; made.dataset.key = group.key;
    if (group.code === state.name) made.setAttribute("aria-selected", "true");
    return made;
  });
  const more = groups.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : "";
  show("kernels", table([["kernel", "key"], ["kind", "kind"], ["library", null], ["calls", "calls"], ["total", "total_ns"], ["share", "total_ns"], ["mean", "mean_ns"], ["median", "median_ns"], ["90 %", "p90_ns"], ["longest", "max_ns"]],
    body, `${number(groups.length)} kernel names${more}`, state.sort));
  const calls = groups.reduce((sum, group) => sum + group.calls, 0), output = element("chosen");
  output.textContent = filtered() ? `${number(calls)} calls chosen, ${time(total)}` : `all ${number(data.calls)} calls, ${time(data.total_ns)}`;
  output.dataset.calls = calls; output.dataset.totalNs = total;
}

function drawKinds() {
  const kinds = data.by.kind.map((entry) => entry.key);
  show("kinds", ...kinds.map((kind) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = PALETTE[kind] || PALETTE.unknown;
    return make("button", { type: "button", "aria-pressed": state.hidden.has(kind) ? "false" : "true", onclick: () => {
      const hidden = new Set(state.hidden);
      if (!hidden.delete(kind)) hidden.add(kind);
      update({ hidden });
    } }, swatch, kind);
  }));
}

function figures(group) {
  return [number(group.calls), time(group.total_ns), percent(group.total_ns, data.total_ns), time(group.mean_ns), time(group.median_ns), time(group.max_ns)];
}
const HEAD = ["calls", "total", "share", "mean", "median", "longest"].map((text) => [text, null]);

function drawParts() {
  const body = data.by.kind.map((group) => { const made = row(group.key, ...figures(group)); made.dataset.totalNs = group.total_ns; made.dataset.key = group.key; return made; });
  show("parts", table([["kind", null], ...HEAD], body, "Time by kind of kernel, sums of durations"), ...layerParts());
}

function layerParts() {
  const layer = data.layer;
  if (!layer) return [paragraph("Layers are unknown: no sequence of kernels that begins with a norm repeats three times.")];
  const body = layer.parts.flatMap((part) => [row(`${part.part}, from norm to norm`, "", time(part.mean_ns), percent(part.mean_ns, layer.mean_ns)),
    ...part.kernels.map((kernel) => row(kernel.name, kernel.kind, time(kernel.mean_ns), percent(kernel.mean_ns, layer.mean_ns)))]);
  return [paragraph(`${number(layer.layers)} layers of ${time(layer.mean_ns)} each, averaged place by place.`), table([["part and kernel", null], ["kind", null], ["mean", null], ["of the layer", null]], body, "A layer by part")];
}

function drawSteps() {
  const groups = data.by.region.filter((group) => group.key !== "(none)").sort((a, b) => b.total_ns - a.total_ns), steps = data.by.step.filter((group) => group.key !== "(none)");
  const slowest = steps.reduce((best, group) => (best && best.total_ns >= group.total_ns ? best : group), null);
  show("steps", paragraph(slowest ? `${number(steps.length)} steps; ${slowest.key} has the most kernel time, ${time(slowest.total_ns)}.` : "Unknown: this recording marks no steps."),
    steps.length ? table([["step", null], ...HEAD], steps.slice(0, MOST_ROWS).map((group) => row(group.key, ...figures(group))), "Kernel time by step") : null,
    groups.length ? table([["region", null], ...HEAD], groups.slice(0, MOST_ROWS).map((group) => row(group.key, ...figures(group))), `${number(groups.length)} regions`) : paragraph("This recording names no regions."));
}

function drawRanks() {
  const many = data.by.rank.length > 1;
  const collective = data.collectives;
  const late = collective.wait_ns === null ? "Who is late is unknown: that takes the collectives of several ranks on one clock." : `Ranks wait ${time(collective.wait_ns)} in collectives for the last one.`;
  show("ranks", paragraph(many ? late : "One rank or device: nothing to compare."), table([["rank", null], ...HEAD], data.by.rank.map((group) => row(group.key, ...figures(group))), "Kernel time by rank"));
}

function drawCollectives() {
  const found = data.collectives;
  if (!found.calls) return show("collectives", paragraph("This recording holds no collectives."));
  const longest = data.longest_collectives_ns.reduce((sum, ns) => sum + ns, 0);
  show("collectives", paragraph(`${number(found.calls)} calls, ${time(found.total_ns)}: ${time(found.overlap_with_gemm_ns)} hidden under GEMMs, ${time(found.exposed_ns)} exposed.`),
    paragraph(`The ${data.longest_collectives_ns.length} longest take ${time(longest)} together. Waiting for the last rank: ${time(found.wait_ns)}; transfer: ${time(found.transfer_ns)}.`));
}

function drawIdle() {
  if (data.idle_ns === null) return show("idle", paragraph("Unknown: this recording holds no begin and end of its kernels."));
  const first = data.first_ns, body = data.gaps.map((gap) => {
    const begin = gap.start_ns - first;
    return make("tr", {}, make("td", {}, make("button", { type: "button", onclick: () => { look(begin - gap.gap_ns * 0.1, begin + gap.gap_ns * 1.1); element("timeline").focus(); } }, time(begin))),
      ...[time(gap.gap_ns), percent(gap.gap_ns, data.span_ns), gap.agent ?? gap.process ?? "", gap.waited_for, gap.before, gap.after].map((text) => make("td", {}, text ?? "unknown")));
  });
  const six = data.gaps.slice(0, 6).reduce((sum, gap) => sum + gap.gap_ns, 0);
  show("idle", paragraph(`Idle ${time(data.idle_ns)} of ${time(data.span_ns)}. The ${Math.min(6, data.gaps.length)} longest gaps hold ${time(six)}.`),
    table([["begin", null], ["length", null], ["of the span", null], ["device", null], ["waited for", null], ["before", null], ["after", null]], body, "The longest gaps"));
}

function drawGemms() {
  if (!data.gemms.length) return show("gemms", paragraph("Unknown: this recording states no M, N and K. A PyTorch profile with record_shapes, or regions that say M=.. N=.. K=.., do."));
  const body = data.gemms.slice(0, MOST_ROWS).map((gemm) => row(gemm.name, gemm.shape.join(" x "), number(gemm.calls), time(gemm.total_ns), time(gemm.median_ns),
    gemm.tflops === null ? "unknown" : gemm.tflops.toFixed(1), gemm.tb_per_s === null ? "unknown" : gemm.tb_per_s.toFixed(2), bound(gemm)));
  show("gemms", paragraph(roofText()), make("canvas", { id: "roof", role: "img", "aria-label": "TFLOP/s of each GEMM over its FLOP per byte" }),
    table([["kernel", null], ["M x N x K", null], ["calls", null], ["total", null], ["median", null], ["TFLOP/s", null], ["TB/s", null], ["bound by, share of the roofline", null]], body, "GEMMs by name and shape, at the median"));
  drawRoof();
}

const roofAt = (intensity) => Math.min(data.roof.peak_tflops, intensity * data.roof.tb_per_s);
function bound(gemm) {
  if (!data.roof || !gemm.bytes || gemm.tflops === null) return "unknown";
  const intensity = gemm.flop / gemm.bytes;
  return `${intensity * data.roof.tb_per_s < data.roof.peak_tflops ? "memory" : "compute"}, ${percent(gemm.tflops, roofAt(intensity))}`;
}
const roofText = () => (data.roof ? `Ceilings of ${data.roof.device} (${data.roof.kind}): ${data.roof.peak_tflops} TFLOP/s bf16, ${data.roof.tb_per_s} TB/s.` : "The device is unknown to the cost model: no ceiling is drawn.");

function drawRoof() {
  const points = data.gemms.filter((gemm) => gemm.bytes && gemm.tflops);
  const canvas = element("roof");
  if (!canvas || !points.length) return;
  const [context, width, tall] = prepare(canvas), ink = css("--ink");
  const xs = points.map((gemm) => gemm.flop / gemm.bytes), ys = points.map((gemm) => gemm.tflops), top = data.roof ? data.roof.peak_tflops : Math.max(...ys);
  const low = [Math.min(...xs) / 2, Math.min(...ys) / 2].map(Math.log10), high = [Math.max(...xs) * 2, Math.max(top, ...ys) * 1.5].map(Math.log10);
  const x = (value) => 60 + ((Math.log10(value) - low[0]) / (high[0] - low[0])) * (width - 70), y = (value) => tall - 24 - ((Math.log10(value) - low[1]) / (high[1] - low[1])) * (tall - 34);
  context.fillStyle = ink;
  for (let power = Math.ceil(low[0]); power <= high[0]; power++) context.fillText(`${10 ** power} FLOP/B`, x(10 ** power), tall - 8);
  for (let power = Math.ceil(low[1]); power <= high[1]; power++) context.fillText(`${10 ** power}`, 8, y(10 ** power));
  if (data.roof) {
    context.strokeStyle = ink; context.beginPath();
    for (let step = 0; step <= 60; step++) { const value = 10 ** (low[0] + (step / 60) * (high[0] - low[0])); context.lineTo(x(value), y(roofAt(value))); }
    context.stroke();
  }
  context.fillStyle = PALETTE.gemm;
  points.forEach((gemm, place) => { context.beginPath(); context.arc(x(xs[place]), y(ys[place]), 5, 0, 7); context.fill(); });
}

function drawTail() {
  const tail = data.tail;
  if (!tail) return show("tail", paragraph("Not looked for."));
  if (tail.form === "none") return show("tail", paragraph(`No latent tail: ${tail.evidence.join("; ")}.`));
  const savings = Object.entries(tail.savings || {}).map(([form, saving]) => row(form, time(saving.step_ns), saving.band90_ns ? saving.band90_ns.map(time).join(" to ") : "unknown", `${saving.kind}, ${saving.source}`));
  show("tail", paragraph(`The tail is ${tail.form}: ${tail.evidence.join("; ")}.`), paragraph(`${number(tail.layers)} ${tail.steps === null ? "tails in the recording" : "layers a step"}; ${tail.share_of_step === null ? "unknown" : percent(tail.share_of_step, 1)} of the kernel time; ${time(tail.per_step_ns)} a step.`),
    table([["part", null], ["time a step", null]], Object.entries(tail.parts_ns).map(([part, ns]) => row(part, time(ns))), "The tail by part, sums of durations"),
    savings.length ? table([["form", null], ["saved a step", null], ["90 % band", null], ["from", null]], savings, "What another form would save") : paragraph(`Savings: ${tail.why_no_savings || "no other form is known"}.`));
}

function drawCompare() {
  const found = data.compare;
  if (!found) return show("compare", paragraph("No baseline was given: latent-moe report TRACE BASELINE -o FILE.html adds one."));
  const ratio = (value) => (value === null || value === undefined ? "-" : value.toFixed(3));
  const kinds = Object.entries(found.per_call).map(([kind, call]) => row(kind, time(call.baseline_ns), time(call.candidate_ns), ratio(call.speedup), number(call.baseline_calls), number(call.candidate_calls)));
  const own = new Map(data.by.name.map((group) => [group.key, group])), keys = new Set([...own.keys(), ...found.by_name.map((group) => group.key)]), other = new Map(found.by_name.map((group) => [group.key, group]));
  const pair = (mine, theirs, key) => row(key, time(theirs?.median_ns), time(mine?.median_ns), theirs?.median_ns && mine?.median_ns ? ratio(theirs.median_ns / mine.median_ns) : "-", number(theirs?.calls ?? 0), number(mine?.calls ?? 0));
  const names = [...keys].sort((a, b) => ((own.get(b)?.total_ns ?? 0) + (other.get(b)?.total_ns ?? 0)) - ((own.get(a)?.total_ns ?? 0) + (other.get(a)?.total_ns ?? 0))).slice(0, MOST_ROWS);
  const shape = (list) => { const groups = new Map(); for (const gemm of list) { const key = gemm.shape.join(" x "), group = groups.get(key) || { calls: 0, total_ns: 0, median_ns: gemm.median_ns }; group.calls += gemm.calls; group.total_ns += gemm.total_ns; groups.set(key, group); } return groups; };
  const shapesHere = shape(data.gemms), shapesThere = shape(found.gemms);
  const head = (what) => [[what, null], ["baseline", null], ["here", null], ["speed-up", null], ["calls", null], ["calls here", null]];
  show("compare", paragraph(`Verdict: ${found.verdict} (${found.reasons.join("; ")}). Baseline: ${found.sources.join(", ")}.`), table(head("kind"), kinds, "By kind, mean of a call"),
    table(head("kernel"), names.map((key) => pair(own.get(key), other.get(key), key)), "By name, median of a call"),
    table(head("M x N x K"), [...new Set([...shapesHere.keys(), ...shapesThere.keys()])].map((key) => pair(shapesHere.get(key), shapesThere.get(key), key)), "By GEMM shape, median of the longest kernel's call"));
}
