"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const SHOWN_AT_MOST = 2000;
  const STATES = { all: "all", clean: "clean", flagged: "flagged", failed: "failed", pareto: "Pareto front" };

  // Names from the report become text nodes, never markup.
  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  }

  const place = (id, ...children) =>
    document.getElementById(id).append(...children.filter((child) => child !== null));
  const digits = (value, count = 4) =>
    value === null || value === undefined ? "" : Number(value.toPrecision(count)).toString();
  const distinct = (values) => [...new Set(values)];

  function withInterval(value, low, high) {
    if (value === null) return "";
    const half = low === null || high === null ? 0 : (high - low) / 2;
    return half > 0 ? [digits(value), element("small", {}, ` ± ${digits(half, 2)}`)] : digits(value);
  }

  function range(interval) {
    return interval === null ? "" : element("small", {}, ` [${digits(interval[0])}, ${digits(interval[1])}]`);
  }

  const flagsOf = (row) => row.flags.map((flag) => element("span", { className: "flag" }, flag));

  // A sortable table. A column has a title, the key it is sorted by, optionally the cell that is shown, and flags.
  function table(columns, rows, classOf = () => "") {
    let sorted = { key: null, descending: false };
    let current = rows;
    const body = element("tbody", {});
    const note = element("p", { className: "quiet" });
    const heads = columns.map((column) => {
      const button = element("button", { type: "button" }, column.title);
      const head = element("th", { scope: "col", className: column.number ? "number" : "" }, button);
      button.addEventListener("click", () => {
        const again = sorted.key === column.key;
        sorted = { key: column.key, descending: again && !sorted.descending };
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
        fill();
      });
      return head;
    });

    function compare(one, other) {
      const [a, b] = [one[sorted.key], other[sorted.key]];
      if (a === b) return 0;
      if (a === null || a === undefined) return 1; // rows without a value come last in either direction
      if (b === null || b === undefined) return -1;
      const order = typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a).localeCompare(String(b), "en", { numeric: true });
      return sorted.descending ? -order : order;
    }

    function fill() {
      const ordered = sorted.key === null ? current : [...current].sort(compare);
      body.replaceChildren(...ordered.slice(0, SHOWN_AT_MOST).map((row) => element(
        "tr", { className: classOf(row) },
        columns.map((column) => {
          const shown = [column.cell ? column.cell(row) : row[column.key] ?? ""].flat();
          const className = column.number ? "number" : column.wide ? "wide" : "";
          const cell = element("td", { className }, shown);
          if (!column.number) cell.title = cell.textContent;
          return cell;
        }),
      )));
      note.textContent = ordered.length > SHOWN_AT_MOST
        ? `${SHOWN_AT_MOST} of ${ordered.length} rows are shown: narrow the filters to see the others.`
        : current.length < rows.length ? `${current.length} of ${rows.length} rows` : "";
    }

    fill();
    const whole = element("table", {}, element("thead", {}, element("tr", {}, heads)), body);
    return {
      node: element("div", {}, note, element("div", { className: "scroll" }, whole)),
      show(some) { current = some; fill(); },
    };
  }

  function head() {
    const counts = Object.keys(STATES).slice(1).map((state) => {
      const found = data.rows.filter((row) => state === "pareto" ? row.pareto : row.state === state);
      return `${found.length} ${state === "pareto" ? "on a Pareto front" : state}`;
    });
    const run = new Map(data.run);
    place("head",
      element("h1", {}, data.gpu, " ", data.emulated ? element("span", { className: "badge" }, "emulated") : null),
      element("p", { className: "quiet" },
        `run ${run.get("run")}, ${run.get("started")}: ${data.rows.length} measurements, ${counts.join(", ")}`),
      data.emulated ? element("p", {}, "Time, power and energy on this page are recorded or modelled, not measured"
        + (data.replay ? "." : "; the kernels' results were verified.")) : null);
  }

  function best() {
    if (data.best.length === 0) {
      place("best", element("p", {}, "Nothing was measured."));
      return;
    }
    const told = (what) => (row) => [
      row[what].figure,
      element("small", {}, ` ${row[what].kernel} at ${row[what].cap}${row[what].flagged ? " (flagged)" : ""}`),
    ];
    place("best", table([
      { title: "workload", key: "workload" },
      { title: "least time", key: "time_order", cell: told("time") },
      { title: "least energy", key: "energy_order", cell: told("energy") },
      { title: "least EDP", key: "edp_order", cell: told("edp") },
      { title: "best cap (EDP)", key: "cap" },
      { title: "Pareto front, from fast to frugal", key: "size", wide: true,
        cell: (row) => row.front.slice(0, 12).map((one) => `${one.kernel} at ${one.cap}`).join(", ")
          + (row.front.length > 12 ? `, and ${row.front.length - 12} more` : "") },
      { title: "measured", key: "measured", number: true },
    ], data.best.map((row) => {
      const least = (field) => data.rows.filter((one) => one.workload === row.workload && one[field] !== null)
        .reduce((found, one) => Math.min(found, one[field]), Infinity);
      return { ...row, cap: row.edp.cap, size: row.front.length, time_order: least("time_us"),
        energy_order: least("energy_mj"), edp_order: least("edp_mj_ms") };
    })).node);
  }

  const filters = {};

  function select(name, title, choices) {
    const chosen = element("select", { name }, choices.map(([value, text]) => element("option", { value }, text)));
    filters[name] = chosen;
    return element("label", {}, title, chosen);
  }

  function controls(changed, redrawn) {
    const named = (values) => [["", "all"], ...values.map((value, number) => [String(number), value])];
    filters.workloads = distinct(data.rows.map((row) => row.workload));
    const search = element("input", { type: "search", name: "search", placeholder: "name, band, flag, error" });
    filters.search = search;
    const metrics = Object.entries(data.charts.distribution).map(([field, spec]) =>
      [field, spec.title.text.replace(/^Distribution of (.*) over the kernels.*$/, "$1")]);
    place("filters",
      select("workload", "workload", named(filters.workloads)),
      select("cap", "power cap", named(data.caps)),
      select("state", "show", Object.entries(STATES)),
      element("label", {}, "search", search),
      select("metric", "distribution of", metrics));
    for (const name of ["workload", "cap", "state"]) filters[name].addEventListener("change", changed);
    search.addEventListener("input", changed);
    filters.metric.addEventListener("change", redrawn);
  }

  function chosenRows() {
    const workload = filters.workloads[filters.workload.value];
    const cap = data.caps[filters.cap.value];
    const state = filters.state.value;
    const words = filters.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return data.rows.filter((row) =>
      (workload === undefined || row.workload === workload)
      && (cap === undefined || row.cap === cap)
      && (state === "all" || (state === "pareto" ? row.pareto : row.state === state))
      && words.every((word) => row.text.includes(word)));
  }

  // Vega looks names up in plain objects, where "__proto__" and the like have a special meaning.
  const harmless = (name) => name in {} ? `\u200b${name}` : name;

  const forCharts = (row) =>
    ({ ...row, kernel: harmless(row.kernel), cap: harmless(row.cap), band: harmless(row.band) });

  // Positive values that span more than a factor of 8 are drawn on a logarithmic scale.
  function scaled(spec, rows) {
    const copy = structuredClone(spec);
    const bands = distinct(data.rows.map((row) => harmless(row.band)));
    const caps = data.caps.map(harmless);
    (function visit(node) {
      if (node === null || typeof node !== "object") return;
      if (node.type === "quantitative" && typeof node.field === "string") {
        const base = node.field.replace(/_(low|high)$/, "");
        const values = rows.map((row) => row[base]).filter((value) => value !== null);
        const [least, most] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), 0)];
        if (least > 0 && most > 8 * least) node.scale = { type: "log", nice: false, padding: 8 };
      }
      if (node.field === "cap" && node.scale) node.scale.domain = caps;
      if (node.field === "cap") node.sort = caps;
      if (node.field === "band") node.sort = bands;
      if (node.field === "band" && node.scale) node.scale.domain = bands;
      Object.values(node).forEach(visit);
    })(copy);
    return copy;
  }

  const OPTIONS = {
    mode: "vega-lite", renderer: "svg", ast: true, tooltip: { theme: "light" },
    actions: { export: true, source: false, compiled: false, editor: false },
  };

  // The charts of one workload, drawn when they scroll into view.
  class Workload {
    constructor(name) {
      this.name = name;
      // Charts without rows would warn about scales with infinite extent.
      this.all = data.rows.filter((row) => row.workload === name && row.state !== "failed");
      this.rows = this.all;
      this.views = new Map();
      this.seen = false;
      this.charts = new Map(["front", "edp", "efficiency", "distribution"].map((kind) =>
        [kind, element("div", { className: `chart ${kind}` })]).filter(() => this.all.length > 0));
      this.node = element("section", { className: "workload" },
        element("h3", {}, data.emulated ? `${name} (emulated)` : name),
        this.all.length > 0 ? element("div", { className: "grid" }, [...this.charts.values()])
          : element("p", {}, "None of its kernels was measured."));
      new IntersectionObserver((entries, observer) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        this.seen = true;
        for (const kind of this.charts.keys()) this.draw(kind);
      }, { rootMargin: "600px" }).observe(this.node);
    }

    async draw(kind) {
      const found = data.charts[kind];
      const spec = scaled(kind === "distribution" ? found[filters.metric.value] : found, this.all);
      spec.title.text = `${this.name}: ${spec.title.text}`;
      spec.data = { name: "rows", values: this.rows.map(forCharts) };
      const place = this.charts.get(kind);
      try {
        const result = await vegaEmbed(place, spec, OPTIONS);
        this.views.get(kind)?.finalize();
        this.views.set(kind, result);
        place.dataset.drawn = kind === "distribution" ? filters.metric.value : kind;
        result.view.data("rows", this.rows.map(forCharts)).run();
      } catch (problem) {
        place.replaceChildren(element("p", {}, `This chart cannot be drawn: ${problem.message}`));
      }
    }

    show(rows) {
      const chosen = rows.filter((row) => row.workload === this.name);
      const drawn = chosen.filter((row) => row.state !== "failed");
      this.node.hidden = this.all.length > 0 ? drawn.length === 0 : chosen.length === 0;
      if (drawn.length === 0) return;
      this.rows = drawn;
      for (const { view } of this.views.values()) view.data("rows", drawn.map(forCharts)).run();
    }
  }

  function measurements() {
    return table([
      { title: "workload", key: "workload" },
      { title: "kernel", key: "kernel" },
      { title: "band", key: "band" },
      { title: "power cap", key: "cap" },
      { title: "limit (W)", key: "limit_w", number: true, cell: (row) => digits(row.limit_w) },
      { title: "time (µs)", key: "time_us", number: true, cell: (row) => withInterval(row.time_us, row.time_us_low, row.time_us_high) },
      { title: "energy (mJ)", key: "energy_mj", number: true, cell: (row) => withInterval(row.energy_mj, row.energy_mj_low, row.energy_mj_high) },
      { title: "EDP (mJ·ms)", key: "edp_mj_ms", number: true, cell: (row) => withInterval(row.edp_mj_ms, row.edp_mj_ms_low, row.edp_mj_ms_high) },
      { title: "power (W)", key: "power_w", number: true, cell: (row) => digits(row.power_w) },
      { title: "GFLOP/s", key: "gflops", number: true, cell: (row) => digits(row.gflops) },
      { title: "GFLOP/s/W", key: "gflops_per_w", number: true, cell: (row) => digits(row.gflops_per_w) },
      { title: "Pareto", key: "pareto", cell: (row) => row.pareto ? "front" : "" },
      { title: "cap binding", key: "binding", cell: (row) => row.binding === null ? "" : row.binding ? "yes" : "no" },
      { title: "validity", key: "flag_words", wide: true, cell: flagsOf },
      { title: "outcome", key: "outcome", wide: true, cell: (row) => row.error ? `${row.outcome}: ${row.error}` : row.outcome },
      { title: "°C", key: "temperature_c", number: true, cell: (row) => digits(row.temperature_c, 3) },
      { title: "SM MHz", key: "effective_sm_clock_mhz", number: true, cell: (row) => [
        digits(row.effective_sm_clock_mhz, 5),
        element("small", {}, row.clock_states.length === 0 ? "" : ` (${row.clock_states.join(", ")})`),
      ] },
      { title: "SM MHz by NVML", key: "sm_clock_mhz", number: true },
      { title: "content", key: "digest" },
    ], data.rows, (row) => row.state);
  }

  function validity() {
    if (data.flags.length === 0) {
      place("validity", element("p", {}, "No measurement has a flag."));
      return;
    }
    place("validity", table([
      { title: "flag", key: "flag" },
      { title: "measurements", key: "count", number: true },
      { title: "means", key: "meaning", wide: true },
    ], data.flags).node);
  }

  function drift() {
    if (data.anchors.length === 0) return;
    document.getElementById("drift").hidden = false;
    const change = (field) => (row) => row[field] === null ? "" : [
      `${row[field] > 0 ? "+" : ""}${row[field].toFixed(2)}`,
      element("small", {}, ` [${digits(row[`${field}_low`], 3)}, ${digits(row[`${field}_high`], 3)}]`),
    ];
    place("anchors",
      element("p", {}, "Kernels measured early in the run and again later under the same power cap: change since the "
        + "first measurement, with 95 % intervals."),
      table([
        { title: "time", key: "started" },
        { title: "workload", key: "workload" },
        { title: "kernel", key: "kernel" },
        { title: "power cap", key: "cap" },
        { title: "°C", key: "temperature_c", number: true },
        { title: "first °C", key: "first_temperature_c", number: true },
        { title: "time (%)", key: "time", number: true, cell: change("time") },
        { title: "energy (%)", key: "energy", number: true, cell: change("energy") },
        { title: "EDP (%)", key: "edp", number: true, cell: change("edp") },
        { title: "verdict", key: "verdict" },
        { title: "items covered", key: "items", number: true },
        { title: "why", key: "why", wide: true },
      ], data.anchors, (row) => row.verdict === "drift" ? "flagged" : "").node);
  }

  function comparison() {
    if (data.baseline === null) return null;
    document.getElementById("comparison").hidden = false;
    place("differences", element("p", {}, "Change of each figure since the baseline, with both 95 % intervals and "
      + "without a verdict."),
      element("details", {}, element("summary", {}, `Baseline: run ${new Map(data.baseline).get("run")}`),
        identity(data.baseline)));
    const made = table([
      { title: "workload", key: "workload" },
      { title: "kernel", key: "kernel" },
      { title: "power cap", key: "cap" },
      { title: "figure", key: "metric" },
      { title: "baseline", key: "before", cell: (row) => [digits(row.before), range(row.before_interval)] },
      { title: "now", key: "now", cell: (row) => [digits(row.now), range(row.now_interval)] },
      { title: "change (%)", key: "change_percent", number: true,
        cell: (row) => row.change_percent === null ? "" : (row.change_percent > 0 ? "+" : "") + row.change_percent.toFixed(2) },
      { title: "kernel content", key: "same_kernel", cell: (row) => row.same_kernel ? "same" : "different" },
      { title: "validity (both)", key: "flag_words", wide: true, cell: flagsOf },
    ], data.differences, (row) => row.flags.length ? "flagged" : "");
    place("differences", made.node);
    return made;
  }

  function replay() {
    if (!data.replay) return;
    document.getElementById("replay").hidden = false;
    const nameOf = (row) => data.replay.steps[row.step] ?? row.step;
    const stepOf = (row) => data.replay.ranks > 1 && row.rank !== undefined ? `${nameOf(row)}, rank ${row.rank}` : nameOf(row);
    const percent = (value) => value === null ? "" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;
    const figure = (title, key) => ({ title, key, number: true, cell: (row) => digits(row[key]) });
    const change = (title, key) => ({ title, key, number: true, cell: (row) => percent(row[key]) });
    place("accounts",
      element("p", {}, "Measured energy of each step of ", data.replay.model, " = its calls, each measured alone, + what "
        + "the temperature changes + links between GPUs + gaps at the power between launches + residual."),
      table([
        { title: "step", key: "step", cell: stepOf },
        { title: "as", key: "level" },
        { title: "power cap", key: "cap" },
        { title: "measured (mJ)", key: "energy_mj", number: true,
          cell: (row) => withInterval(row.energy_mj, row.energy_mj - row.energy_mj_half_width,
            row.energy_mj + row.energy_mj_half_width) },
        { title: "calls (mJ)", key: "kernels_mj", number: true,
          cell: (row) => withInterval(row.kernels_mj, row.kernels_mj - row.kernels_mj_half_width,
            row.kernels_mj + row.kernels_mj_half_width) },
        figure("temperature (mJ)", "temperature_mj"), ...(data.replay.ranks > 1 ? [figure("links (mJ)", "links_mj")] : []),
        figure("gaps (mJ)", "gaps_mj"),
        figure("residual (mJ)", "residual_mj"), change("prediction (%)", "energy_error"),
        figure("measured (ms)", "time_ms"), figure("calls (ms)", "kernels_ms"), change("calls' GPU time (%)", "time_error"),
        figure("J per token", "joules_per_token"), figure("tokens per J", "tokens_per_joule"),
        figure("EDP (mJ·ms)", "edp_mj_ms"),
        { title: "GPU time replayed (%)", key: "coverage", number: true, cell: (row) => (100 * row.coverage).toFixed(1) },
      ], data.replay.accounts).node);
    if (data.replay.totals.length) place("accounts",
      element("p", {}, `All ${data.replay.ranks} GPUs together:`),
      table([
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
        table([
          { title: "call", key: "call" }, { title: "operator", key: "operator" },
          { title: "calls", key: "calls", number: true }, figure("ms", "time_ms"), figure("mJ", "energy_mj"),
          figure("energy (%)", "share"), figure("so far (%)", "so_far"),
        ], parts).node));
    }
    if (data.replay.savings.length) place("accounts", element("details", {},
      element("summary", {}, "What each call would save under the power cap that suits it best"),
      table([
        { title: "step", key: "step", cell: stepOf }, { title: "call", key: "call" }, { title: "operator", key: "operator" },
        { title: "calls", key: "calls", number: true }, { title: "best cap", key: "cap" },
        figure("mJ", "energy_mj"), figure("mJ saved", "saved_mj"),
        { title: "time (%)", key: "slowdown", number: true, cell: (row) => percent(row.slowdown - 1) },
      ], data.replay.savings).node));
    if (data.replay.missing.length) place("accounts", element("details", {},
      element("summary", {}, `${data.replay.missing.length} not replayed`),
      table([{ title: "what", key: "what" }, { title: "why", key: "why", wide: true }], data.replay.missing).node));
  }

  const identity = (pairs) => element("dl", {}, pairs.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));

  for (const row of [...data.rows, ...data.differences]) row.flag_words = row.flags.join(" ");
  for (const row of data.rows) {
    row.text = [row.workload, row.kernel, row.band, row.cap, row.flag_words, row.outcome, row.error, row.item, row.digest]
      .join(" ").toLowerCase();
  }

  head();
  replay();
  best();
  const all = measurements();
  const compared = comparison();
  let workloads = [];
  controls(() => {
    const rows = chosenRows();
    all.show(rows);
    const kept = new Set(rows.map((row) => JSON.stringify([row.workload, row.kernel, row.cap])));
    compared?.show(data.differences.filter((row) => kept.has(JSON.stringify([row.workload, row.kernel, row.cap]))));
    for (const one of workloads) one.show(rows);
  }, () => workloads.filter((one) => one.seen).forEach((one) => one.draw("distribution")));
  workloads = filters.workloads.map((name) => new Workload(name));
  place("charts", ...(workloads.length ? workloads.map((one) => one.node) : [element("p", {}, "Nothing to draw.")]));
  place("measurements", all.node);
  validity();
  drift();
  place("run", identity(data.run));
  document.body.dataset.ready = "yes";
})();
