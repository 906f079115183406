// The page: what is drawn once, what follows the filters, and the ten questions that lead to their answers.
const QUESTIONS = [["Which kernels take the time?", "kernels"], ["Which GEMM shapes, and what bounds them?", "gemms"], ["Where is the device idle?", "idle"], ["Which step is slow?", "steps"],
  ["Which rank is late?", "ranks"], ["What do collectives cost?", "collectives"], ["Where does a layer's time go?", "parts"], ["How do two runs differ?", "compare"],
  ["How does one kernel behave over time?", "scatter"], ["What happened when?", "timeline"], ["Which tail runs?", "tail"]];

function drawFacts() {
  const facts = element("facts");
  facts.textContent = `${data.formats.join(", ")}${data.partial ? ", partial" : ""}; ${data.device || "device unknown"}; ${number(data.calls)} calls, sum of durations ${time(data.total_ns)}, ` +
    `devices busy ${time(data.busy_ns)}, idle ${time(data.idle_ns)}, first to last ${time(data.span_ns)}` + (data.untimed_calls ? `; ${number(data.untimed_calls)} calls without a time` : "");
  for (const key of ["calls", "total_ns", "busy_ns", "span_ns", "idle_ns", "untimed_calls"]) facts.dataset[key.replace(/_(\w)/g, (_, letter) => letter.toUpperCase())] = data[key];
  show("warnings", ...data.warnings.map((warning) => make("li", {}, warning.message)));
  show("questions", ...QUESTIONS.map(([text, id]) => make("li", {}, make("a", { href: `#h-${id}`, onclick: (event) => { event.preventDefault(); element(`h-${id}`).scrollIntoView(); const target = element(id); target.tabIndex = target.tabIndex < 0 ? -1 : target.tabIndex; target.focus({ preventScroll: true }); } }, text))));
}

async function start() {
  await unpack();
  readUrl();
  index(); chooseLanes(); filter();
  drawFacts(); drawParts(); drawSteps(); drawRanks(); drawCollectives(); drawIdle(); drawGemms(); drawTail(); drawCompare();
  if (lanes.length < data.lanes.length) element("now").textContent = `The ${lanes.length} busiest of ${data.lanes.length} queues and streams are drawn.`;
  const search = element("search");
  search.value = state.text;
  search.addEventListener("input", () => update({ text: search.value }));
  element("clear").addEventListener("click", () => { search.value = ""; update({ text: "", hidden: new Set(), name: -1, time: null, dur: null }); });
  pointer(element("timeline")); brushScatter(element("scatter"));
  listeners.push(drawTimeline, drawScatter, (all) => { if (all) { drawKernels(); drawKinds(); } });
  window.addEventListener("resize", () => { update({}, false); drawRoof(); });
  window.addEventListener("hashchange", () => { readUrl(); search.value = state.text; update({}); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { update({}, false); drawRoof(); });
  update({});
  document.body.dataset.ready = "yes";
}
start();
