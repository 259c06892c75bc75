// The charts of a workload: energy against time, a figure by cap, and any figure by anything else.
function axisOf(quantity, rows, ends) {
  if (!quantity.numeric) {
    const known = { cap: data.caps, limit: data.limits, clock: data.clocks, band: bands }[quantity.name];
    const found = distinct(rows.map(quantity.of).filter((value) => value !== null));
    return namedScale(known ? known.filter((name) => found.includes(name)) : found, ends);
  }
  const values = rows.flatMap((row) => [quantity.of(row), quantity.low?.(row), quantity.high?.(row)]);
  return numericScale(values.filter((value) => typeof value === "number"), ends);
}

function endsOf(quantity, scaled, row) {
  const [low, high] = [quantity.low?.(row), quantity.high?.(row)];
  if (typeof low !== "number" || typeof high !== "number") return null;
  const both = [scaled.at(low), scaled.at(high)];
  return both.every(Number.isFinite) ? both : null;
}

function pointsOf(rows, x, y, xScale, yScale) {
  return rows.filter((row) => x.of(row) !== null && y.of(row) !== null).map((row) => ({
    row, hue: colour(row), lines: () => withLines(row, x, y),
    x: xScale.at(x.of(row)) + (x.numeric ? 0 : sideways(row, x, xScale)), y: yScale.at(y.of(row)),
    ends: { x: endsOf(x, xScale, row), y: endsOf(y, yScale, row) },
  })).filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
}

// What is chosen for an axis comes with the tip, unless it is there anyway.
function withLines(row, ...shown) {
  const more = shown.filter((one) => one.name.startsWith(".")).map((one) => {
    const value = one.of(row);
    return [one.title, typeof value === "number" ? digits(value) : value ?? "unknown"];
  });
  return [...linesOf(row), ...more];
}

// Points of one name are drawn side by side: by colour, or by band where the name is the colour.
function sideways(row, x, { step }) {
  const byBand = x.name === "cap" || x.title === coloured.title;
  const names = byBand ? bands : coloured.names;
  const place = names.indexOf(byBand ? row.band : coloured.of(row));
  return names.length < 2 ? 0 : 0.7 * step * ((place + 0.5) / names.length - 0.5);
}

function described(title, rows, y) {
  const values = rows.map(y.of).filter((value) => typeof value === "number");
  const ends = values.length ? `, ${y.title} from ${digits(values.reduce((a, b) => Math.min(a, b)))} to `
    + digits(values.reduce((a, b) => Math.max(a, b))) : "";
  return `${title}: ${rows.length} points${ends}. Step through them with the arrow keys; all figures are in the table below.`;
}

// A scatter chart of `rows`, on axes that fit `all`, with lines below the points.
function scatter(width, title, x, y, all, rows, lines = () => []) {
  const turned = !x.numeric && distinct(all.map(x.of)).length > (width - 80) / 60;
  const bottom = turned ? 92 : MARGIN.bottom;
  const area = inside(width, bottom);
  const [xScale, yScale] = [axisOf(x, all, area.x), axisOf(y, all, area.y)];
  const svg = frame(width, described(title, rows, y), xScale, yScale, x.title, y.title, bottom);
  const points = pointsOf(rows, x, y, xScale, yScale);
  svg.append(...lines(points));
  whiskers(svg, points);
  marks(svg, points);
  return finish(svg, points);
}

function frontLine(points) {
  const front = points.filter((point) => point.row.pareto).sort((a, b) => a.x - b.x);
  if (front.length < 2) return [];
  return [drawn("path", { class: "front-line", d: `M${front.map(({ x, y }, number) =>
    number ? `H${x}V${y}` : `${x} ${y}`).join("")}` })];
}

// A line for each kernel through its caps, at each clock; or through its clocks, under each cap.
const kernelLines = (other) => (points) => {
  const kernels = new Map();
  for (const point of points) {
    const key = JSON.stringify([point.row.kernel, point.row[other]]);
    kernels.set(key, [...kernels.get(key) ?? [], point]);
  }
  const paths = [...kernels.values()].map((found) =>
    `M${found.sort((a, b) => a.x - b.x).map(({ x, y }) => `${x} ${y}`).join("L")}`);
  return [drawn("path", { class: "kernel-line", d: paths.join("") })];
};

const LIMIT = { name: "limit_w", title: "enforced power limit (W)", numeric: true, of: (row) => row.limit_w };
const ACHIEVED = { name: "achieved_mhz", title: "achieved SM clock (MHz)", numeric: true,
  of: (row) => row.effective_sm_clock_mhz ?? row.lock_mhz };
const figureChosen = () => quantities.get(chosen("figure")) ?? quantities.get("edp_mj_ms");
const axisChosen = () => quantities.get(chosen("by")) ?? quantities.get("kernel");

class Workload {
  constructor(name) {
    this.name = name;
    this.all = data.rows.filter((row) => row.workload === name && measured(row));
    this.rows = this.all;
    this.charts = this.all.length > 0 ? this.make() : [];
    this.node = element("section", { className: "workload", aria: { label: name } }, element("h3", {}, emulated(name)),
      this.charts.length ? element("div", { className: "grid" }, this.charts.map((one) => one.node))
        : element("p", {}, "None of its kernels was measured."));
  }

  make() {
    const [time, energy] = [quantities.get("time_us"), quantities.get("energy_mj")];
    const found = [];
    const titled = (text) => emulated(`${this.name}: ${text}`);
    const add = (kind, title, draw) => {
      const made = chart(kind, title(), (width) => {
        made.caption.textContent = title();
        return draw(width, title());
      });
      found.push(made);
    };
    if (time && energy) {
      add("front", () => titled("energy against time, with the Pareto front"), (width, title) =>
        scatter(width, title, time, energy, this.all, this.rows, frontLine));
    }
    if (data.limits.length > 1 && this.all.some((row) => row.limit_w !== null)) {
      const each = `a line for each kernel${severalClocks ? " and clock" : ""}`;
      add("edp", () => titled(`${figureChosen().title} by power cap, ${each}`), (width, title) =>
        scatter(width, title, LIMIT, figureChosen(), this.all, this.rows, kernelLines("clock")));
    }
    if (severalClocks && this.all.some((row) => ACHIEVED.of(row) !== null)) {
      const each = `a line for each kernel${data.limits.length > 1 ? " and power cap" : ""}`;
      add("clocks", () => titled(`${figureChosen().title} by achieved SM clock, ${each}`), (width, title) =>
        scatter(width, title, ACHIEVED, figureChosen(), this.all, this.rows, kernelLines("limit")));
    }
    add("explorer", () => titled(`${figureChosen().title} by ${axisChosen().title}`), (width, title) =>
      scatter(width, title, axisChosen(), figureChosen(), this.all, this.rows));
    if (data.caps.length > 1) found.push(heatMap(this));
    if (data.limits.length > 1 && severalClocks) found.push(clockMaps(this));
    return found;
  }

  show(rows) {
    const mine = rows.filter((row) => row.workload === this.name);
    this.rows = mine.filter(measured);
    this.node.hidden = this.all.length > 0 ? this.rows.length === 0 : mine.length === 0;
    for (const one of this.charts) one.again();
  }
}

// Arithmetic intensity and speed of all workloads, below the roofs of the card.
function roofline() {
  const [x, y] = [quantities.get("flop_per_byte"), quantities.get("gflops")];
  const all = data.rows.filter((row) => measured(row) && row.flop_per_byte !== null && row.gflops > 0);
  if (!data.roofs || !Object.keys(data.roofs.gflops).length || !all.length) return null;
  let rows = all;
  const title = emulated(`Roofline: speed by arithmetic intensity, below the peaks of ${data.gpu} by its datasheet`);
  const made = chart("roofline", title, (width) => {
    const { bandwidth_gb_s: bandwidth, gflops } = data.roofs;
    const area = inside(width);
    const peaks = Object.entries(gflops);
    const ridges = peaks.flatMap(([, peak]) => [2 * peak / bandwidth, peak / bandwidth / 3]);
    const xScale = numericScale([...all.map(x.of), ...ridges], { ...area.x, log: true });
    const slow = all.map(y.of).reduce((a, b) => Math.min(a, b));
    const yScale = numericScale([slow, ...all.map(y.of), ...peaks.map(([, peak]) => peak)], { ...area.y, log: true });
    const svg = frame(width, described(title, rows, y), xScale, yScale, x.title, y.title);
    const lowest = all.map(x.of).concat(ridges).reduce((a, b) => Math.min(a, b));
    const most = all.map(x.of).concat(ridges).reduce((a, b) => Math.max(a, b));
    for (const [name, peak] of peaks) {
      const start = Math.max(lowest, slow / bandwidth);
      const d = `M${xScale.at(start)} ${yScale.at(start * bandwidth)}L${xScale.at(peak / bandwidth)} ${yScale.at(peak)}`
        + `L${xScale.at(Math.max(most, peak / bandwidth))} ${yScale.at(peak)}`;
      svg.append(drawn("path", { class: "roof-line", d }));
      svg.append(drawn("text", { class: "tick", x: area.x.to - 4, y: yScale.at(peak) - 4, "text-anchor": "end" },
        `${name} ${digits(peak / 1000)} TFLOP/s`));
    }
    const points = pointsOf(rows, x, y, xScale, yScale);
    whiskers(svg, points);
    marks(svg, points);
    return finish(svg, points);
  });
  return { node: made.node, show(some) { rows = some.filter((row) => all.includes(row)); made.again(); } };
}

function legend() {
  const key = (d, text, one, className = "mark") => element("li", {},
    drawn("svg", { viewBox: "-9 -9 18 18", width: 18, height: 18, "aria-hidden": "true" },
      tint(drawn("path", { class: className, d }), one)), text);
  const names = coloured.names.slice(0, MOST_COLOURS);
  const rest = coloured.names.length - names.length;
  place("legend", element("ul", { aria: { label: "Legend of all charts" } },
    element("li", { className: "quiet" }, `${coloured.title}:`),
    names.map((name, number) => key(CIRCLE(5), name, hue(number, names.length))),
    rest > 0 ? key(CIRCLE(5), `${rest} others`, null) : null,
    key(CIRCLE(5), "clean", null), key(TRIANGLE(5), "flagged", null), key(CIRCLE(6), "on the Pareto front", null, "ring"),
    key(CIRCLE(6), "within noise of it", null, "ring near"),
    key("M0 -8V8M-4 -8h8M-4 8h8", "95 % interval", null, "whisker")));
}
