// The report's data, with its measurements as rows again.
const data = JSON.parse(document.getElementById("report-data").textContent);

// A column of texts has each of them once, and the places where they are.
const valuesOf = (column) => Array.isArray(column) ? column : column.at.map((place) => column.words[place]);

function rowsOf({ count, columns }) {
  const rows = Array.from({ length: count }, (_, number) => ({ number }));
  for (const [name, column] of Object.entries(columns)) {
    valuesOf(column).forEach((value, number) => { rows[number][name] = value; });
  }
  return rows;
}

data.rows = rowsOf(data.rows);
const measured = (row) => row.state === "clean" || row.state === "flagged";
const distinct = (values) => [...new Set(values)];
const workloads = distinct(data.rows.map((row) => row.workload));
const bands = distinct(data.rows.map((row) => row.band));

for (const row of [...data.rows, ...data.differences]) row.flag_words = row.flags.join(" ");
for (const row of data.rows) {
  row.text = [row.workload, row.kernel, row.band, row.cap, row.flag_words, row.outcome, row.error, row.item, row.digest]
    .join(" ").toLowerCase();
}

// What can be put on an axis, by name: a title, the value of a row, and the ends of its interval if it has one.
const quantities = new Map();
for (const [name, { title, better }] of Object.entries(data.figures)) {
  if (!data.rows.some((row) => row[name] !== null)) continue;
  const [low, high] = [`${name}_low`, `${name}_high`];
  quantities.set(name, { name, title, better, numeric: true, figure: true, of: (row) => row[name], low: (row) => row[low],
    high: (row) => row[high] });
}
// Where clocks were locked, a setpoint is a power limit with a clock.
const locked = data.clocks.some((clock) => clock !== "unlocked");
const severalClocks = data.clocks.length > 1;
const CAP = locked ? "setpoint" : "power cap";
const named = [["kernel", "kernel"], ["band", "band"], ["cap", CAP], ["workload", "workload"]];
if (locked) named.push(["limit", "power cap"], ["clock", "SM clock"]);
for (const [name, title] of named) {
  quantities.set(name, { name, title, numeric: false, of: (row) => row[name] });
}
for (const { name, title, values } of data.axes) {
  const cells = valuesOf(values);
  const numeric = cells.every((cell) => cell === null || typeof cell === "number");
  quantities.set(`.${name}`, { name: `.${name}`, title, numeric, of: (row) => cells[row.number] });
}

// Of a single cap there is nothing to compare: colours then stand for clocks, or for the bands of kernels.
const coloured = data.limits.length > 1
  ? { title: "power cap", names: data.limits, of: (row) => row.limit }
  : severalClocks ? { title: "SM clock", names: data.clocks, of: (row) => row.clock }
    : { title: "band", names: bands, of: (row) => row.band };
