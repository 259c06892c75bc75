// The tables: all measurements, their differences from a baseline, flags, and checks for drift.
function measurements() {
  const figure = (name) => {
    const { title } = data.figures[name];
    return { title, key: name, number: true, cell: (row) => withInterval(row[name], row[`${name}_low`], row[`${name}_high`]) };
  };
  return table("All measurements", [
    { title: "kernel", key: "kernel" },
    { title: "workload", key: "workload" },
    { title: CAP, key: "cap" },
    figure("time_us"), figure("energy_mj"), figure("edp_mj_ms"), figure("power_w"), figure("gflops"), figure("percent_of_peak"),
    { title: "roof", detail: true, key: "roof" },
    figure("gb_s"), { ...figure("flop_per_byte"), detail: true }, figure("gflops_per_w"),
    ...CALIBRATED.filter((name) => data.figures[name]).map(figure),
    { title: "Pareto", detail: true, key: "pareto", cell: (row) => row.pareto ? "front" : row.near_pareto ? "within noise" : "" },
    { title: "validity", key: "flag_words", wide: true, cell: flagsOf },
    { title: "outcome", key: "outcome", wide: true, cell: (row) => row.state === "verified" ? row.error
      : row.error ? `${row.outcome}: ${row.error}` : row.outcome },
    { title: "band", detail: true, key: "band" },
    { title: "limit (W)", detail: true, key: "limit_w", number: true, cell: (row) => digits(row.limit_w) },
    { title: "cap binding", detail: true, key: "binding", cell: (row) => row.binding === null ? "" : row.binding ? "yes" : "no" },
    { title: "°C", detail: true, key: "temperature_c", number: true, cell: (row) => digits(row.temperature_c, 3) },
    ...locked ? [{ title: "locked MHz", detail: true, key: "lock_mhz", number: true }] : [],
    { title: "SM MHz", detail: true, key: "effective_sm_clock_mhz", number: true, cell: (row) => [
      digits(row.effective_sm_clock_mhz, 5),
      row.clock_states.length === 0 ? null : small(` (${row.clock_states.join(", ")})`),
    ] },
    { title: "SM MHz by NVML", detail: true, key: "sm_clock_mhz", number: true },
    { title: "content", detail: true, key: "digest" },
  ], data.rows, { classOf: (row) => row.state });
}

function validity() {
  if (data.flags.length === 0) {
    place("validity", element("p", {}, "No measurement has a flag."));
    return;
  }
  place("validity", table("Flags and what they mean", [
    { title: "flag", key: "flag" },
    { title: "measurements", key: "count", number: true },
    { title: "means", key: "meaning", wide: true },
  ], data.flags).node);
}

function drift() {
  if (data.anchors.length === 0) return;
  show("drift");
  const change = (field) => (row) => row[field] === null ? "" : [
    `${row[field] > 0 ? "+" : ""}${row[field].toFixed(2)}`,
    small(` [${digits(row[`${field}_low`], 3)}, ${digits(row[`${field}_high`], 3)}]`),
  ];
  place("anchors",
    element("p", {}, "Kernels measured early in the run and again later at the same setpoint: change since the "
      + "first measurement, with 95 % intervals."),
    table("Checks for drift", [
      { title: "kernel", key: "kernel" },
      { title: "workload", key: "workload" },
      { title: CAP, key: "cap" },
      { title: "time", key: "started" },
      { title: "°C", key: "temperature_c", number: true },
      { title: "first °C", key: "first_temperature_c", number: true },
      { title: "time (%)", key: "time", number: true, cell: change("time") },
      { title: "energy (%)", key: "energy", number: true, cell: change("energy") },
      { title: "EDP (%)", key: "edp", number: true, cell: change("edp") },
      { title: "verdict", key: "verdict" },
      { title: "items covered", key: "items", number: true },
      { title: "why", key: "why", wide: true },
    ], data.anchors, { classOf: (row) => row.verdict === "drift" ? "flagged" : "" }).node);
}

function comparison() {
  if (data.baseline === null) return null;
  show("comparison");
  const key = (one) => JSON.stringify([one.workload, one.kernel, one.cap, one.cache, one.metric]);
  const known = new Map((data.verdicts?.judgements ?? []).map((one) => [key(one), one.verdict]));
  for (const row of data.differences) {
    row.verdict = known.get(JSON.stringify([row.workload_name, row.kernel, row.cap, row.cache, row.metric])) ?? "";
  }
  place("differences", element("p", {}, data.differences.length ? "Each figure of the baseline and now, both with their 95 % intervals."
      : "Nothing was measured in both on one GPU model, and figures of several are never compared."),
    element("details", {}, element("summary", {}, `Baseline: run ${new Map(data.baseline).get("run")}`),
      identity(data.baseline)));
  const made = table("Figures of the baseline and now", [
    { title: "kernel", key: "kernel" },
    { title: "workload", key: "workload" },
    { title: CAP, key: "cap" },
    { title: "figure", key: "figure" },
    { title: "baseline", key: "before", cell: (row) => [digits(row.before), range(row.before_interval)] },
    { title: "now", key: "now", cell: (row) => [digits(row.now), range(row.now_interval)] },
    { title: "change (%)", key: "change_percent", number: true,
      cell: (row) => row.change_percent === null ? "" : (row.change_percent > 0 ? "+" : "") + row.change_percent.toFixed(2) },
    ...data.shifts.length ? [{ title: "beyond the common shift (%)", key: "relative_percent", number: true,
      cell: (row) => row.relative_percent === null ? "" : (row.relative_percent > 0 ? "+" : "") + row.relative_percent.toFixed(2) }] : [],
    { title: "verdict", key: "verdict" },
    { title: "kernel content", key: "same_kernel", cell: (row) => row.same_kernel ? "same" : "different" },
    { title: "validity (both)", key: "flag_words", wide: true, cell: flagsOf },
  ], data.differences, { classOf: (row) => row.flags.length ? "flagged" : "" });
  place("differences", made.node);
  return made;
}
