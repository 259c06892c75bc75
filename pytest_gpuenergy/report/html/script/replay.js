// Whose joules they are: the account of a replayed model.
function replay() {
  if (!data.replay) return;
  show("replay");
  const nameOf = (row) => data.replay.steps[row.step] ?? row.step;
  const stepOf = (row) => data.replay.ranks > 1 && row.rank !== undefined ? `${nameOf(row)}, rank ${row.rank}` : nameOf(row);
  const percent = (value) => value === null ? "" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;
  const figure = (title, key) => ({ title, key, number: true, cell: (row) => digits(row[key]) });
  const change = (title, key) => ({ title, key, number: true, cell: (row) => percent(row[key]) });
  place("accounts",
    element("p", {}, "Measured energy of each step of ", data.replay.model, " = its calls, each measured alone, + what "
      + "the temperature and the clocks of the step change + what calls take more with their neighbours + links between "
      + "GPUs + gaps at the power between launches + residual."),
    table("Energy of each step", [
      { title: "step", key: "step", cell: stepOf },
      { title: "as", key: "level" },
      { title: "power cap", key: "cap" },
      { title: "measured (mJ)", key: "energy_mj", number: true,
        cell: (row) => withInterval(row.energy_mj, row.energy_mj - row.energy_mj_half_width,
          row.energy_mj + row.energy_mj_half_width) },
      { title: "calls (mJ)", key: "kernels_mj", number: true,
        cell: (row) => withInterval(row.kernels_mj, row.kernels_mj - row.kernels_mj_half_width,
          row.kernels_mj + row.kernels_mj_half_width) },
      figure("temperature (mJ)", "temperature_mj"),
      figure("clocks (mJ)", "clocks_mj"), figure("neighbours (mJ)", "neighbours_mj"),
      ...(data.replay.ranks > 1 ? [figure("links (mJ)", "links_mj")] : []), figure("gaps (mJ)", "gaps_mj"),
      figure("residual (mJ)", "residual_mj"), change("prediction (%)", "energy_error"),
      figure("measured (ms)", "time_ms"), figure("calls (ms)", "kernels_ms"), change("calls' GPU time (%)", "time_error"),
      figure("J per token", "joules_per_token"), figure("tokens per J", "tokens_per_joule"),
      figure("EDP (mJ·ms)", "edp_mj_ms"),
      { title: "GPU time replayed (%)", key: "coverage", number: true, cell: (row) => (100 * row.coverage).toFixed(1) },
    ], data.replay.accounts).node);
  if (data.replay.totals.length) place("accounts",
    element("p", {}, `All ${data.replay.ranks} GPUs together:`),
    table("Energy of each step on all GPUs", [
      { title: "step", key: "step", cell: nameOf }, { title: "as", key: "level" }, { title: "power cap", key: "cap" },
      { title: "measured (mJ)", key: "energy_mj", number: true,
        cell: (row) => withInterval(row.energy_mj, row.energy_mj - row.energy_mj_half_width,
          row.energy_mj + row.energy_mj_half_width) },
      change("prediction (%)", "energy_error"), figure("measured (ms)", "time_ms"),
      figure("J per token", "joules_per_token"), figure("tokens per J", "tokens_per_joule"),
      figure("EDP (mJ·ms)", "edp_mj_ms"),
    ], data.replay.totals).node);
  for (const one of data.replay.accounts.filter((account) => account.level === "graph")) {
    const total = one.parts.reduce((sum, part) => sum + part.energy_mj, 0) || 1;
    let sum = 0;
    const parts = one.parts.map((part) => {
      sum += part.energy_mj;
      return { ...part, share: 100 * part.energy_mj / total, so_far: 100 * sum / total };
    });
    const ten = parts.length ? parts[Math.min(parts.length, 10) - 1].so_far.toFixed(1) : "0";
    place("accounts", element("details", {},
      element("summary", {}, `${stepOf(one)} at ${one.cap}: the first ${Math.min(parts.length, 10)} of ${parts.length} calls `
        + `take ${ten} % of the calls' energy`),
      table("Calls of a step", [
        { title: "call", key: "call" }, { title: "operator", key: "operator" },
        { title: "calls", key: "calls", number: true }, figure("ms", "time_ms"), figure("mJ", "energy_mj"),
        figure("energy (%)", "share"), figure("so far (%)", "so_far"),
      ], parts).node));
  }
  if (data.replay.savings.length) place("accounts", element("details", {},
    element("summary", {}, "What each call would save under the power cap that suits it best"),
    table("Savings of each call", [
      { title: "step", key: "step", cell: stepOf }, { title: "call", key: "call" }, { title: "operator", key: "operator" },
      { title: "calls", key: "calls", number: true }, { title: "best cap", key: "cap" },
      figure("mJ", "energy_mj"), figure("mJ saved", "saved_mj"),
      { title: "time (%)", key: "slowdown", number: true, cell: (row) => percent(row.slowdown - 1) },
    ], data.replay.savings).node));
  if (data.replay.missing.length) place("accounts", element("details", {},
    element("summary", {}, `${data.replay.missing.length} not replayed`),
    table("Calls that were not replayed", [{ title: "what", key: "what" }, { title: "why", key: "why", wide: true }], data.replay.missing).node));
}
