// What a gate says of the changes since the baseline, the worst first, on one common axis.
const FIRST = innerWidth < 700 ? 3 : 6; // rows before "show more"

function verdicts() {
  const found = data.verdicts;
  if (!found) return;
  show("verdicts");
  if (found.why) {
    place("judgements", element("p", {}, `There are no verdicts: ${found.why}`));
    return;
  }
  const [worst] = found.judgements;
  place("judgements",
    element("p", { className: "headline" },
      found.enforced ? [element("span", { className: `badge ${found.passed ? "good" : "bad"}` }, found.passed ? "passed" : "failed"), " "] : null,
      worst ? element("b", {}, `${worst.label} ${worst.metric === "edp" ? "EDP" : worst.metric} ${changeText(worst)} ${worst.verdict}`) : null,
      worst ? " is the worst. " : null, found.summary.replace(/: (passed|FAILED)$/, "."),
      found.enforced ? null : " No limit was set, so nothing fails; the default of 5 % is shown."),
    (found.shifts ?? []).map((line) => element("p", {}, line)),
    found.doubts.map((doubt) => element("p", {}, `Every verdict is in doubt: ${doubt}.`)));
  if (!found.judgements.length) return;
  const rows = found.judgements.map((one, number) => ({ ...one, number, name: `${one.label} ${one.metric}`,
    reason_words: one.reasons.filter((reason) => !found.doubts.includes(reason)).join("; ") }));
  const known = rows.flatMap((one) => [...one.interval ?? [], one.change ?? 0, 2 * one.limit, -2 * one.limit]);
  const most = Math.min(1.05 * known.filter(Number.isFinite).reduce((a, b) => Math.max(a, Math.abs(b)), 0), 2);
  place("judgements", table("Changes since the baseline, the worst first", [
    { title: "kernel and cap", key: "label" },
    { title: "figure", key: "metric", cell: (one) => one.metric === "edp" ? "EDP" : one.metric },
    { title: "verdict", key: "number", cell: (one) => element("span", { className: `badge ${one.verdict.toLowerCase()}` }, one.verdict) },
    { title: "change", key: "change", number: true, cell: (one) => changeText(one) },
    { title: `from ${signed(-most, 0)} to ${signed(most, 0)}, limit shaded`, key: "change", wide: true, cell: (one) => bar(one, most) },
    ...rows.some((one) => one.reason_words) ? [{ title: "why not surer", key: "reason_words", wide: true }] : [],
  ], rows, { atOnce: FIRST, classOf: (one) => one.fails ? "failed" : "" }).node);
  if (found.unmatched.length) place("judgements", element("details", {},
    element("summary", {}, `${found.unmatched.length} without a counterpart`),
    table("Measurements without a counterpart", [
      { title: "what", key: "what" }, { title: "kernel and cap", key: "label" }, { title: "why", key: "why", wide: true },
    ], found.unmatched).node));
}

const changeText = ({ change, interval }) => change === null ? ""
  : `${signed(change)}${interval ? ` [${signed(interval[0])}, ${signed(interval[1])}]` : ""}`;

// The interval of a change; its axis is common to all rows and at least twice as wide as the limit.
function bar({ change, interval, limit, verdict, label, metric }, most) {
  const at = (value) => 100 + 100 * Math.max(-1, Math.min(1, value / most));
  const svg = drawn("svg", { class: `bar ${verdict.toLowerCase()}`, viewBox: "0 0 200 18", preserveAspectRatio: "none", role: "img",
    "aria-label": `${label} ${metric} ${changeText({ change, interval })}` });
  const [low, high] = [at(1 / (1 + limit) - 1), at(limit)];
  svg.append(drawn("rect", { class: "limit", x: low, y: 0, width: high - low, height: 18 }),
    drawn("path", { class: "zero", d: "M100 0V18" }));
  if (change === null) return svg;
  const [a, b] = interval ?? [change, change];
  svg.append(drawn("path", { class: "whisker", d: `M${at(a)} 9H${at(b)}M${at(a)} 4V14M${at(b)} 4V14` }),
    drawn("path", { class: "value", d: `M${at(change)} 3V15` }));
  return svg;
}
