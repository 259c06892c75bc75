// How much worse each kernel is under each cap than the best of its workload, as a table with shades.
const MOST_KERNELS = 40;
const PALE = 0.2; // difference from the best that is as pale as can be: noise changes no shade that an eye can see

function heatMap(workload) {
  const caption = () => emulated(`${workload.name}: ${figureChosen().title} by kernel and power cap, relative to the best`);
  const area = element("div", { className: "area" });
  const title = element("figcaption", {}, caption());
  const node = element("figure", { className: "chart heat", data: { drawn: "heat" } },
    element("div", { className: "top" }, title), area);
  function draw() {
    title.textContent = caption();
    area.replaceChildren(heatTable(workload.all, workload.rows, figureChosen(), caption()));
  }
  draw();
  return { node, again: draw };
}

function heatTable(all, rows, figure, label) {
  const good = figure.better === "more" ? -1 : 1;
  const known = all.filter((row) => figure.of(row) > 0);
  const best = known.reduce((found, row) => !found || good * figure.of(row) < good * figure.of(found) ? row : found, null);
  if (best === null) return element("p", {}, "There is nothing to compare.");
  const worse = (row) => good > 0 ? figure.of(row) / figure.of(best) - 1 : 1 - figure.of(row) / figure.of(best);
  const places = new Map();
  for (const row of rows.filter((one) => figure.of(one) > 0)) {
    const caps = places.get(row.kernel) ?? new Map();
    const other = caps.get(row.cap);
    if (!other || worse(row) < worse(other)) caps.set(row.cap, row);
    places.set(row.kernel, caps);
  }
  const least = (caps) => [...caps.values()].map(worse).reduce((a, b) => Math.min(a, b));
  const kernels = [...places].sort(([, a], [, b]) => least(a) - least(b));
  const caps = data.caps.filter((cap) => rows.some((row) => row.cap === cap));
  const cellOf = (row) => {
    if (!row) return element("td", { className: "none" }, "–");
    const shade = Math.max(0, 1 - worse(row) / PALE);
    const half = figure.low && figure.high(row) > figure.low(row) ? (figure.high(row) - figure.low(row)) / 2 / figure.of(row) : 0;
    const cell = element("td", { title: linesOf(row).map((line) => line.join(" ").trim()).join("\n") },
      row === best ? "best" : signed(good * worse(row)), half > 0 ? small(` ± ${digits(100 * half, 2)} %`) : null,
      row.flags.length ? small(" flagged") : null);
    cell.style.setProperty("--shade", `${Math.round(70 * shade)}%`);
    return cell;
  };
  const shown = kernels.slice(0, MOST_KERNELS);
  return element("div", {},
    element("div", { className: "scroll", role: "region", tabIndex: 0, aria: { label } },
      element("table", { className: "shades", aria: { label } },
        element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "kernel"),
          caps.map((cap) => element("th", { scope: "col" }, cap)))),
        element("tbody", {}, shown.map(([kernel, found]) => element("tr", {}, element("th", { scope: "row" }, kernel),
          caps.map((cap) => cellOf(found.get(cap)))))))),
    element("p", { className: "quiet" }, `Dark: the best, ${digits(figure.of(best))}; pale: ${signed(good * PALE, 0)} or worse. `
      + `± is the figure's own 95 % interval.${kernels.length > shown.length ? ` The best ${shown.length} of ${kernels.length} kernels.` : ""}`));
}
