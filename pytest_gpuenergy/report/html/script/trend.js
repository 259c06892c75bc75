// A figure over the runs of a project: a line for each kernel and cap, in the colours of the legend.
const MOST_LINES = 12;
const TRENDS = { time_us: ["time", 1e3], energy_mj: ["energy", 1], edp_mj_ms: ["edp", 1] };

function trends() {
  if (data.trend === null) return null;
  show("trend");
  const rows = new Map(data.rows.map((row) => [JSON.stringify([row.known_as, row.kernel, row.cap]), row]));
  const all = data.trend.map((one) => ({ ...one, row: [`${one.workload}, ${one.cache}`, one.workload]
    .map((workload) => rows.get(JSON.stringify([workload, one.kernel, one.cap]))).find(Boolean) })).filter((one) => one.row);
  if (!all.length) {
    place("trends", element("p", {}, "No kernel was measured in two of these runs on one board under one power cap."));
    return null;
  }
  const runs = distinct(all.flatMap((one) => one.runs.map((run) => JSON.stringify(run)))).map((run) => JSON.parse(run))
    .sort(([, a], [, b]) => a < b ? -1 : a > b ? 1 : 0);
  let kept = new Set(data.rows.map((row) => row.number));
  const changed = (one, metric) => one.metrics[metric].changes.reduce((most, { relative }) => Math.max(most, Math.abs(relative)), 0);
  const made = workloads.filter((name) => all.some((one) => one.row.workload === name)).map((name) => {
    const mine = all.filter((one) => one.row.workload === name);
    const title = () => emulated(`${name}: ${figureOfTrend().title} over ${runs.length} runs`);
    const one = chart("trend", title(), (width) => {
      const figure = figureOfTrend();
      const [metric] = TRENDS[figure.name];
      const shown = mine.filter((line) => kept.has(line.row.number))
        .sort((a, b) => changed(b, metric) - changed(a, metric)).slice(0, MOST_LINES);
      one.caption.textContent = `${title()}${mine.length > MOST_LINES ? `, ${shown.length} of ${mine.length} kernels and caps` : ""}`;
      return trendChart(width, one.caption.textContent, figure, runs, shown);
    });
    return { name, one };
  });
  const metrics = distinct(all.flatMap((one) => Object.entries(one.metrics).flatMap(([metric, { changes }]) =>
    changes.map((change) => ({ label: `${one.kernel} of ${one.workload} at ${one.cap}`, metric: metric === "edp" ? "EDP" : metric,
      run: change.run, change: change.relative, p: change.p })))));
  place("trends", metrics.length ? table("Changes of level", [
    { title: "kernel", key: "label" }, { title: "figure", key: "metric" }, { title: "from run", key: "run" },
    { title: "change", key: "change", number: true, cell: (row) => signed(row.change) },
    { title: "p", key: "p", number: true, cell: (row) => digits(row.p, 2) },
  ], metrics, { atOnce: FIRST }).node : element("p", {}, "No figure has changed its level."),
  element("div", { className: "grid" }, made.map(({ one }) => one.node)));
  return {
    show(some) {
      kept = new Set(some.map((row) => row.number));
      const names = new Set(some.map((row) => row.workload));
      for (const { name, one } of made) {
        one.node.hidden = !names.has(name);
        one.again();
      }
    },
  };
}

const figureOfTrend = () => TRENDS[figureChosen().name] ? figureChosen() : quantities.get("edp_mj_ms");

function trendChart(width, title, figure, runs, lines) {
  const [metric, times] = TRENDS[figure.name];
  const area = inside(width);
  const places = runs.map(([id]) => id);
  const x = namedScale(places, area.x);
  x.marks = x.marks.map(([at, id]) => [at, (runs[places.indexOf(id)][1] || id).slice(5, 16).replace("T", " ")]);
  const number = (value) => typeof value === "number" && Number.isFinite(value);
  const y = numericScale(lines.flatMap(({ metrics }) => [...metrics[metric].values, ...metrics[metric].low, ...metrics[metric].high])
    .filter(number).map((value) => times * value), area.y);
  const points = [];
  const svg = frame(width, `${title}: ${lines.length} lines. Step through the points with the arrow keys.`, x, y, "run", figure.title);
  for (const line of lines) {
    const { values, low, high } = line.metrics[metric];
    const mine = line.runs.map(([id, started], at) => ({
      x: x.at(id), y: y.at(times * values[at]), hue: colour(line.row),
      row: { state: line.flags[at].length ? "flagged" : "clean" },
      ends: { y: number(low[at]) && number(high[at]) ? [y.at(times * low[at]), y.at(times * high[at])] : null },
      lines: () => [["", `${line.kernel} of ${line.workload} at ${line.cap}`], ["run", `${id} ${started}`],
        [figure.title, figureText({}, { of: () => times * values[at], low: () => number(low[at]) ? times * low[at] : null,
          high: () => number(high[at]) ? times * high[at] : null })],
        ...line.flags[at].length ? [["flags", line.flags[at].join(" ")]] : []],
    })).filter((point) => Number.isFinite(point.y));
    svg.append(tint(drawn("path", { class: "series", d: `M${mine.map((point) => `${point.x} ${point.y}`).join("L")}` }), colour(line.row)));
    points.push(...mine);
  }
  whiskers(svg, points);
  marks(svg, points);
  return finish(svg, points);
}
