"use strict";
// Draws every figure of the page from the data beside it; wide enough for the page, never wider. The toolbar keeps what
// works without a network: the usual one also offers to send the figure to a server.
const SHOWN = { responsive: true, displaylogo: false, displayModeBar: true };
SHOWN.modeBarButtons = [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
for (const place of document.querySelectorAll(".figure")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  delete figure.layout.width;
  figure.layout.autosize = true;
  figure.layout.modebar = { color: "#5c5c5c", activecolor: "#000000", bgcolor: "rgba(0,0,0,0)" };
  const target = document.createElement("div");
  place.append(target);
  Plotly.newPlot(target, figure.data, figure.layout, SHOWN);
}
