// What a reader asks first: which kernel, which cap, and how sure that is.
const STATES = { clean: "clean", flagged: "flagged", failed: "failed", verified: "only verified", pareto: "on a Pareto front" };
const inState = (row, state) => state === "pareto" ? row.pareto : row.state === state;

function head() {
  const counts = Object.entries(STATES)
    .map(([state, title]) => [data.rows.filter((row) => inState(row, state)).length, title])
    .filter(([count, title]) => count || title === "clean").map((pair) => pair.join(" "));
  const run = new Map(data.run);
  place("head",
    element("h1", {}, data.gpu, " ", data.emulated ? element("span", { className: "badge" }, "emulated") : null),
    element("p", { className: "quiet" },
      `run ${run.get("run")}, ${run.get("started")}: `, data.rows.length || !data.searches.length
        ? `${data.rows.length} measurements, ${counts.join(", ")}`
        : `${data.searches.length} search${data.searches.length === 1 ? "" : "es"} for better kernels`),
    data.emulated && (data.rows.length || !data.searches.length) ? element("p", {}, "Time, power and energy on this page are recorded or modelled, not measured"
      + (data.replay ? "." : "; the kernels' results were verified.")) : null);
}

function best() {
  if (data.best.length === 0) {
    place("best", element("p", {}, "Nothing was measured."));
    return;
  }
  const least = (metric) => (row) => [
    row[metric].figure, small(row[metric].percent === null ? "" : ` ±${digits(row[metric].percent, 2)} %`),
    row[metric].flagged ? [" ", element("span", { className: "flag" }, "flagged")] : null];
  const told = (metric) => (row) => [...least(metric)(row), small(` ${row[metric].kernels} at ${row[metric].caps}`)];
  const front = (row) => row.front.slice(0, 3).map((one) => `${one.kernel} at ${one.cap}`).join(", ")
    + (row.front.length > 3 ? `, and ${row.front.length - 3} more` : "");
  const rows = data.best.map((row) => ({ ...row, kernel: row.edp.kernels, caps: row.edp.caps, edp_order: row.edp.value,
    sure: row.edp.sure, time_order: row.time.value, energy_order: row.energy.value, size: row.front.length }));
  if (locked) document.getElementById("best-title").textContent = "Which kernel, which cap and clock, how sure";
  place("best",
    element("p", { className: "quiet" }, "By energy-delay product (EDP), with 95 % intervals. What is within noise may be as "
      + "good as the best."),
    table("Best of each workload", [
      { title: "workload", key: "workload" },
      { title: "kernel", key: "kernel", wide: true },
      { title: CAP, key: "caps", wide: true },
      { title: "least EDP", key: "edp_order", cell: least("edp") },
      { title: "how sure", key: "sure", wide: true },
      { title: "least time", key: "time_order", wide: true, cell: told("time") },
      { title: "least energy", key: "energy_order", wide: true, cell: told("energy") },
      { title: "Pareto front", key: "size", wide: true, cell: front },
    ], rows).node);
  clockSavings(data.best.filter((row) => row.savings));
}

// What the best locked clock saves over the best power cap without one, with intervals.
function clockSavings(rows) {
  if (rows.length === 0) return;
  const columns = [["EDP", "edp"], ["energy", "energy"], ["time", "time"]].map(([title, metric]) => ({
    title, key: `${metric}_saving`, wide: true, cell: (row) => row.savings[metric]?.words ?? "",
  }));
  for (const row of rows) {
    for (const [metric, saving] of Object.entries(row.savings)) row[`${metric}_saving`] = saving.change;
  }
  place("best", element("h3", {}, emulated("The best locked clock over the best power cap without one")),
    table("What clocks save over power caps", [{ title: "workload", key: "workload" }, ...columns], rows).node);
}
