// How the boards of a run differ, and the columns of figures calibrated by it.
const CALIBRATED = ["time_calibrated_us", "energy_calibrated_mj", "edp_calibrated_mj_ms"];

function boards() {
  if (data.boards.length === 0) return;
  show("boards");
  const percent = (field) => (row) => row[field] === null ? "" : [
    `${row[field] > 0 ? "+" : ""}${row[field].toFixed(2)}`,
    small(` [${digits(row[`${field}_low`], 3)}, ${digits(row[`${field}_high`], 3)}]`),
  ];
  place("gains",
    element("p", {}, "What each board takes for the same kernels under the same power cap, relative to the mean of all "
      + "boards of its model, with 95 % intervals. Calibrated figures are divided by it; all others are raw."),
    table("Gains of boards", [
      { title: "board", key: "board" },
      { title: "host", key: "host" },
      { title: "GPU", key: "gpu" },
      { title: "power cap", key: "cap" },
      { title: "energy (%)", key: "energy", number: true, cell: percent("energy") },
      { title: "time (%)", key: "time", number: true, cell: percent("time") },
      { title: "EDP (%)", key: "edp", number: true, cell: percent("edp") },
      { title: "why none", key: "why", wide: true },
    ], data.boards).node);
}
