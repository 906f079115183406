"use strict";
// Draws every figure of the page from the data beside it; wide enough for the page, never wider.
for (const place of document.querySelectorAll(".figure")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  delete figure.layout.width;
  figure.layout.autosize = true;
  const target = document.createElement("div");
  place.append(target);
  Plotly.newPlot(target, figure.data, figure.layout, { responsive: true, displaylogo: false });
}
