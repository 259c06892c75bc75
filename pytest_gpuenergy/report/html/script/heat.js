// How much worse each kernel is at each setpoint than the best of its workload, as tables with shades.
const MOST_KERNELS = 40;
const MOST_PLANES = 6;
const PALE = 0.2; // difference from the best that is as pale as can be: noise changes no shade that an eye can see

// What the columns stand for: power caps, or clocks where there is one cap only.
const LIMITS = { title: "power cap", names: data.limits, of: (row) => row.limit };
const CLOCKS = { title: "SM clock", names: data.clocks, of: (row) => row.clock };

function heatMap(workload) {
  const across = data.limits.length > 1 ? LIMITS : CLOCKS;
  const note = across === LIMITS && severalClocks ? ", each at its best clock," : ",";
  return heatFigure("heat", workload, (name) => `${name} by kernel and ${across.title}${note}`, (shades, rows, label) => {
    const kernels = byKernel(shades, rows);
    const shown = kernels.slice(0, MOST_KERNELS);
    return [shadesTable(shades, "kernel", shown, used(across, rows), across.of, label),
      legendOfShades(shades, shown.length, kernels.length)];
  });
}

// A table for each kernel, relative to its own best: its clocks down, its power caps across.
function clockMaps(workload) {
  const titled = (name) => `${name} by SM clock and power cap, each kernel`;
  return heatFigure("planes", workload, titled, (shades, rows, label) => {
    const kernels = byKernel(shades, rows);
    const shown = kernels.slice(0, MOST_PLANES);
    const planes = shown.map(([kernel, found]) => {
      const own = shadesOf(workload.all.filter((row) => row.kernel === kernel), shades.figure);
      const clocks = used(CLOCKS, rows).map((clock) => [clock, found.filter((row) => row.clock === clock)]);
      const away = shades.worse(own.best);
      return element("div", { className: "plane" },
        element("h4", {}, kernel, small(` best ${digits(shades.figure.of(own.best))}`
          + (away > 0 ? `, ${signed(shades.good * away)} from the best kernel` : ""))),
        shadesTable(own, "SM clock", clocks, used(LIMITS, rows), LIMITS.of, `${kernel}, ${label}`));
    });
    return [element("div", { className: "planes" }, planes), legendOfShades(null, shown.length, kernels.length)];
  }, "its own best");
}

function heatFigure(kind, workload, titleOf, draw, to = "the best") {
  const caption = () => emulated(`${workload.name}: ${titleOf(figureChosen().title)} relative to ${to}`);
  const area = element("div", { className: "area" });
  const title = element("figcaption", {}, caption());
  const node = element("figure", { className: `chart heat ${kind}`, data: { drawn: kind } },
    element("div", { className: "top" }, title), area);
  function again() {
    title.textContent = caption();
    const shades = shadesOf(workload.all, figureChosen());
    area.replaceChildren(...shades.best === null ? [element("p", {}, "There is nothing to compare.")]
      : draw(shades, workload.rows.filter(shades.known), caption()));
  }
  again();
  return { node, again };
}

// How far rows are from the best of all, by a figure.
function shadesOf(all, figure) {
  const good = figure.better === "more" ? -1 : 1;
  const known = (row) => figure.of(row) > 0;
  const best = all.filter(known).reduce((found, row) => !found || good * figure.of(row) < good * figure.of(found) ? row : found, null);
  const worse = (row) => good > 0 ? figure.of(row) / figure.of(best) - 1 : 1 - figure.of(row) / figure.of(best);
  return { figure, good, known, best, worse, least: (rows) => rows.map(worse).reduce((a, b) => Math.min(a, b), Infinity) };
}

// The kernels with their rows, the best kernel first.
function byKernel(shades, rows) {
  const kernels = new Map();
  for (const row of rows) {
    if (!kernels.has(row.kernel)) kernels.set(row.kernel, []);
    kernels.get(row.kernel).push(row);
  }
  return [...kernels].sort(([, a], [, b]) => shades.least(a) - shades.least(b));
}

const used = ({ names, of }, rows) => names.filter((name) => rows.some((row) => of(row) === name));

// A table with the best of some rows in each cell. `lines` are pairs of a heading and rows.
function shadesTable(shades, corner, lines, columns, of, label) {
  const leastOf = (rows) => rows.reduce((found, row) => !found || shades.worse(row) < shades.worse(found) ? row : found, null);
  return element("div", { className: "scroll", role: "region", tabIndex: 0, aria: { label } },
    element("table", { className: "shades", aria: { label } },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, corner),
        columns.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, lines.map(([heading, found]) => element("tr", {}, element("th", { scope: "row" }, heading),
        columns.map((name) => shadedCell(shades, leastOf(found.filter((row) => of(row) === name)))))))));
}

function shadedCell({ figure, good, best, worse }, row) {
  if (!row) return element("td", { className: "none" }, "–");
  const shade = Math.max(0, 1 - worse(row) / PALE);
  const half = figure.low && figure.high(row) > figure.low(row) ? (figure.high(row) - figure.low(row)) / 2 / figure.of(row) : 0;
  const cell = element("td", { title: linesOf(row).map((line) => line.join(" ").trim()).join("\n") },
    row === best ? "best" : signed(good * worse(row)), half > 0 ? small(` ± ${digits(100 * half, 2)} %`) : null,
    row.flags.length ? small(" flagged") : null);
  cell.style.setProperty("--shade", `${Math.round(70 * shade)}%`);
  return cell;
}

function legendOfShades(shades, shown, count) {
  const best = shades === null ? "" : `, ${digits(shades.figure.of(shades.best))}`;
  const good = figureChosen().better === "more" ? -1 : 1;
  return element("p", { className: "quiet" }, `Dark: the best${best}; pale: ${signed(good * PALE, 0)} or worse. `
    + `± is the figure's own 95 % interval.${count > shown ? ` The best ${shown} of ${count} kernels: search for others.` : ""}`);
}
