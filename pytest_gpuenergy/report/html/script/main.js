// Puts the page together, and keeps charts and tables to what the filters leave.
function control(name, title, choices, usual) {
  const made = element("select", { name, data: { usual } },
    choices.map(([value, text]) => element("option", { value, selected: value === usual }, text)));
  controls.set(name, made);
  return element("label", {}, title, made);
}

function filterBar(changed) {
  const offers = (values) => [["", "all"], ...values.map((value) => [value, value])];
  const search = element("input", { type: "search", name: "search", placeholder: "name, band, flag, error", data: { usual: "" } });
  const offered = [...quantities.values()];
  const titles = (some) => some.map((one) => [one.name, one.title]);
  const figures = offered.filter((one) => one.figure || (one.numeric && one.name.startsWith(".")));
  const reset = element("button", { type: "button" }, "Reset");
  place("filters",
    control("workload", "workload", offers(workloads), ""),
    control("cap", "power cap", offers(data.limits), ""),
    severalClocks ? control("clock", "SM clock", offers(data.clocks), "") : null,
    control("show", "show", [["", "all"], ...Object.entries(STATES)], ""),
    element("label", {}, "search", search),
    control("figure", "figure", titles(figures), figures.some((one) => one.name === "edp_mj_ms") ? "edp_mj_ms" : figures[0]?.name ?? ""),
    control("by", "by", titles(offered.filter((one) => one.name !== "workload")), "kernel"),
    reset);
  controls.set("search", search);
  for (const one of controls.values()) one.addEventListener(one === search ? "input" : "change", changed);
  reset.addEventListener("click", () => {
    for (const one of controls.values()) one.value = one.dataset.usual;
    changed();
  });
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
}

function chosenRows() {
  const [workload, cap, clock, state] = ["workload", "cap", "clock", "show"].map(chosen);
  const words = chosen("search").toLowerCase().split(/\s+/).filter(Boolean);
  return data.rows.filter((row) =>
    (workload === "" || row.workload === workload)
    && (cap === "" || row.limit === cap)
    && (clock === "" || row.clock === clock)
    && (state === "" || inState(row, state))
    && words.every((word) => row.text.includes(word)));
}

// Searches alone have no measurements to show.
if (data.searches.length && !data.rows.length) document.body.classList.add("searches-only");
head();
replay();
verdicts();
best();
legend();
const everything = measurements();
const compared = comparison();
let shown = [];

function update() {
  const rows = chosenRows();
  everything.show(rows);
  const kept = new Set(rows.map((row) => JSON.stringify([row.workload, row.kernel, row.cap])));
  compared?.show(data.differences.filter((row) => kept.has(JSON.stringify([row.workload, row.kernel, row.cap]))));
  for (const one of shown) one.show(rows);
}

filterBar(() => { writeAddress(); update(); });
const roofs = roofline();
const drawnWorkloads = workloads.map((name) => new Workload(name));
shown = [...drawnWorkloads, roofs, trends()].filter(Boolean);
place("charts", drawnWorkloads.length ? drawnWorkloads.map((one) => one.node) : element("p", {}, "Nothing to draw."), roofs?.node);
place("measurements", everything.node);
validity();
drift();
boards();
searches();
place("run", identity(data.run));
readAddress();
if (location.hash.includes("=")) update();
addEventListener("hashchange", () => { if (readAddress()) update(); });
document.body.dataset.ready = "yes";
