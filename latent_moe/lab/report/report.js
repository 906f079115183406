"use strict";
// Draws every figure of the page from the data beside it: as wide as the page, in its theme, its title as text above it, which
// wraps. The toolbar keeps what works without a network: the usual one also offers to send the figure to a server.
const SHOWN = { responsive: true, displaylogo: false, displayModeBar: true };
SHOWN.modeBarButtons = [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
// plots/theme.py draws with these three; on a dark page they are exchanged.
const LIGHT_TO_DARK = { "#2b2b2b": "#e8e8ea", "#fcfcfc": "#1c1f24", "#dddddd": "#4a4f58" };
const PRINTED_PX = 640;

function themed(text, dark) {
  return JSON.parse(dark ? text.replace(/#(2b2b2b|fcfcfc|dddddd)/g, found => LIGHT_TO_DARK[found]) : text);
}

function draw(Plotly, place, dark, width) {
  const figure = themed(place.querySelector("script").textContent, dark);
  const layout = figure.layout, narrow = (width || place.clientWidth) < 560;
  const lines = (layout.title && layout.title.text || "").split("<br>").length;
  delete layout.width;
  delete layout.title;
  if (layout.margin && layout.margin.t) layout.margin.t = Math.max(28, layout.margin.t - 30 * lines);
  if (narrow) {
    layout.legend = { orientation: "h", y: -0.3, ...(layout.legend || {}), x: 0, xanchor: "left" };
    layout.margin = { ...layout.margin, l: 52, r: 8 };
    layout.font = { ...layout.font, size: 11 };
    for (const note of layout.annotations || []) note.font = { ...note.font, size: 9 };
  }
  if (width) {
    layout.width = width;
    if ((layout.height || 0) < 600) layout.height = 320;  // two on a printed page
  } else layout.autosize = true;
  const grey = dark ? "#b9bcc2" : "#5c5c5c";
  layout.modebar = { color: grey, activecolor: dark ? "#ffffff" : "#000000", bgcolor: "rgba(0,0,0,0)" };
  const target = place.querySelector(".drawn") || place.appendChild(Object.assign(document.createElement("div"), { className: "drawn" }));
  return Plotly.react(target, figure.data, layout, { ...SHOWN, responsive: !width });
}

// A page that is one file brings plotly.js packed.
async function library() {
  const packed = document.getElementById("plotly-packed");
  if (window.Plotly || !packed) return window.Plotly;
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), letter => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(plain).text();
  document.head.append(script);
  return window.Plotly;
}

library().then(Plotly => {
  const places = [...document.querySelectorAll(".figure")];
  const all = (dark, width) => places.forEach(place => draw(Plotly, place, dark, width));
  all(DARK.matches);
  DARK.addEventListener("change", () => all(DARK.matches));
  window.addEventListener("beforeprint", () => all(false, PRINTED_PX));
  window.addEventListener("afterprint", () => all(DARK.matches));
});
