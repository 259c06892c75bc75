"use strict";
// Draws the specifications in #charts, each into the element with its name.
const specs = JSON.parse(document.getElementById("charts").textContent);
for (const [name, spec] of Object.entries(specs)) {
  vegaEmbed(`#${name}`, spec, {
    mode: "vega-lite", renderer: "canvas", ast: true, tooltip: { theme: "light" },
    actions: { export: true, source: false, compiled: false, editor: false },
  });
}
