// Graphs of searches for better kernels: a line for each state, below the one that it was made from.
const STATE_HEIGHT = 26;
const DEEPEST = 150; // pixels for all distances from the baseline, so that a phone has room for words

function searches() {
  if (data.searches.length === 0) return;
  show("searches");
  place("graphs", element("p", { className: "quiet" }, "How better kernels were searched for: each state with its figure in the "
    + "search's objective, relative to the baseline's, and the move that made it."));
  data.searches.forEach((one, number) => place("graphs", searchOf(one, number)));
}

const gainWords = (gain) => gain.ratios.map((one) => `${one.metric} x${digits(one.ratio, 3)}`).join(", ");
const assumed = (one) => one.assumed ? " (assumed)" : "";
const stateWords = (one) => one.ratio === null ? one.outcome : `x${one.ratio.toFixed(3)}${assumed(one)}`;
const stateKind = (one) => one.parent === null && one.depth === 0 ? "baseline"
  : one.cost === null ? "failed" : one.ratio !== null && one.ratio < 1 && !one.assumed ? "better" : "other";

function outcomeOf(search) {
  const kept = search.gains.find((gain) => gain.accepted);
  if (!search.finished) return `not finished; ${search.incumbent} has the best figure so far`;
  if (search.gains.some((gain) => gain.unclaimed)) return "no gain is claimed, the baseline is kept";
  return kept ? `${kept.id} is kept: ${gainWords(kept)}` : "the baseline remains the best";
}

function searchOf(search, number) {
  const rows = search.states.map((one, row) => ({ ...one, row, kind: stateKind(one), best: one.id === search.incumbent,
    from: one.parent === null ? "" : search.states[one.parent].id,
    also: one.others.map((other) => search.states[other].id).join(" "),
    items: data.rows.filter((measured) => measured.variant === one.id) }));
  const shares = search.roofline?.map((share) => `${digits(100 * share, 3)} %`);
  const link = (row, what = "variant") => element("a", { href: `#${what}-${number}-${row.row}` }, row.id);
  const byId = new Map(rows.map((row) => [row.id, row]));
  const named = (id) => byId.has(id) ? link(byId.get(id)) : id;
  return element("details", { className: "workload search", open: data.searches.length === 1 },
    element("summary", {}, element("h3", {}, search.name), " ",
      search.emulated ? element("span", { className: "badge" }, "emulated") : null, ` ${outcomeOf(search)}`),
    element("p", { className: "quiet" }, `${search.gpu}${search.settings}, minimizing ${search.objective}, seed ${search.seed}: `
      + `${search.builds} variants, ${search.correct} correct. `
      + (shares ? `Of the least time by the roofline: baseline ${shares[0]}, best ${shares[1]}. ` : "")
      + (search.emulated ? "Time, power and energy are modelled, not measured. " : "") + `Its files are in ${search.folder}.`),
    stateLegend(), statesOf(rows, number),
    search.gains.length ? [element("h4", {}, search.gains.some((gain) => gain.unclaimed)
      ? "Claim" : "Measured alternately with the baseline"), gainsOf(search, named)] : null,
    search.changes.length ? [element("h4", {}, `What leads to ${search.incumbent}`), search.changes.map(changeOf)] : null,
    element("h4", {}, "All variants"), variantsOf(search, rows, number, link, named));
}

function stateLegend() {
  const kinds = [["baseline", "baseline (square)"], ["better", "better than the baseline"], ["other", "not better"],
    ["failed", "failed (cross)"], ["best", "best (ring)"]];
  return element("ul", { className: "states-legend" }, kinds.map(([kind, title]) => {
    const mark = drawn("svg", { width: 20, height: 20, "aria-hidden": "true" }, stateMark(kind, kind === "best", 10, 10));
    return element("li", { className: kind }, mark, title);
  }), element("li", {}, "dashed, for the state in focus: other moves that lead to it"));
}

// Kinds differ by shape and not only by colour.
function stateMark(kind, best, x, y) {
  const mark = kind === "failed" ? drawn("path", { d: `M${x - 4} ${y - 4}l8 8M${x - 4} ${y + 4}l8 -8` })
    : kind === "baseline" ? drawn("rect", { x: x - 5, y: y - 5, width: 10, height: 10 })
      : drawn("circle", { cx: x, cy: y, r: 5 });
  mark.classList.add("state-mark");
  const group = drawn("g", { class: kind }, mark);
  if (best) group.append(drawn("circle", { class: "state-ring", cx: x, cy: y, r: 8.5 }));
  return group;
}

function statesOf(rows, number) {
  const step = Math.min(18, DEEPEST / Math.max(1, ...rows.map((row) => row.depth)));
  const x = (row) => 14 + step * row.depth;
  const y = (row) => STATE_HEIGHT * (row.row + 0.5);
  const width = Math.max(...rows.map(x)) + 14;
  const picture = drawn("svg", { width, height: STATE_HEIGHT * rows.length, "aria-hidden": "true" });
  for (const row of rows) {
    if (row.parent === null) continue;
    const parent = rows[row.parent];
    picture.append(drawn("path", { class: "made", d: `M${x(parent)} ${y(parent)}V${y(row)}H${x(row)}` }));
  }
  const ways = drawn("g", { class: "others" });
  picture.append(ways, ...rows.map((row) => stateMark(row.kind, row.best, x(row), y(row))));
  const point = (row) => ways.replaceChildren(...row.others.map((other) => {
    const from = rows[other];
    const bend = width - 2;
    return drawn("path", { d: `M${x(from)} ${y(from)}C${bend} ${y(from)} ${bend} ${y(row)} ${x(row)} ${y(row)}` });
  }));
  const list = element("ol", {}, rows.map((row) => {
    const words = [`${row.id}: ${stateWords(row)}`, row.move, row.from && `made from ${row.from}`,
      row.also && `other moves lead here from ${row.also}`, row.best && "best"].filter(Boolean).join(", ");
    const line = element("a", { href: `#variant-${number}-${row.row}`, id: `state-${number}-${row.row}`, className: row.kind,
      title: words, aria: { label: words } }, element("b", {}, stateWords(row)), ` ${row.move}`);
    line.style.paddingLeft = `${x(row) + 16}px`;
    for (const event of ["focus", "pointerenter"]) line.addEventListener(event, () => point(row));
    for (const event of ["blur", "pointerleave"]) line.addEventListener(event, () => ways.replaceChildren());
    return element("li", {}, line);
  }));
  return element("div", { className: "states" }, picture, list);
}

function gainsOf(search, named) {
  const rows = search.gains.flatMap((gain) => {
    const words = gain.message || [gain.accepted ? "better" : "not certainly better, and therefore not kept",
      ...gain.reasons].join("; ");
    const figures = gain.message || !gain.ratios.length ? [{ metric: "", ratio: null }] : gain.ratios;
    return figures.map((one) => ({ ...one, id: gain.id, words, rounds: gain.rounds }));
  });
  return table(`Variants of ${search.name} measured alternately with the baseline`, [
    { title: "variant", key: "id", cell: (row) => named(row.id) },
    { title: "figure", key: "metric" },
    { title: "of the baseline's", key: "ratio", number: true,
      cell: (row) => row.ratio === null ? "" : [row.ratio.toFixed(4), small(` [${row.low.toFixed(4)}, ${row.high.toFixed(4)}]`)] },
    { title: "rounds", key: "rounds", number: true },
    { title: "verdict", key: "words", wide: true },
  ], rows).node;
}

const changeOf = (change) => element("details", {}, element("summary", {}, `${change.id}: ${change.move}`),
  change.diff ? element("pre", { className: "scroll", tabIndex: 0, role: "region", aria: { label: `Diff of ${change.id}` } },
    change.diff) : element("p", {}, "Its diff is not there."));

function variantsOf(search, rows, number, link, named) {
  const figure = (title, key, cell) => ({ title, key, number: true, cell });
  return table(`Variants of ${search.name}`, [
    { title: "variant", key: "row", cell: (row) => link(row, "state") },
    { title: "from", key: "from", cell: (row) => row.from && named(row.from) },
    { title: "move", key: "move", wide: true },
    { title: "outcome", key: "outcome" },
    figure(`${search.objective} (${search.unit})`, "cost", (row) => digits(row.cost) + assumed(row)),
    figure("of baseline", "ratio", (row) => row.ratio === null ? "" : row.ratio.toFixed(3) + assumed(row)),
    figure("time (ms)", "time_ms", (row) => digits(row.time_ms)),
    figure("visits", "visits"),
    ...rows.some((row) => row.message) ? [{ title: "why refused", key: "message", wide: true }] : [],
    ...rows.some((row) => row.items.length) ? [{ title: "measured here", key: "items", wide: true,
      cell: (row) => row.items.map((one) => `${one.kernel} at ${one.cap}: ${digits(one.edp_mj_ms)} mJ·ms`).join("; ") }] : [],
  ], rows, { atOnce: rows.length, classOf: (row) => row.kind === "failed" ? "failed" : "",
    idOf: (row) => `variant-${number}-${row.row}` }).node;
}
