// Elements and words. Names from the report become text nodes, never markup.
function element(tag, properties, ...children) {
  const { data: dataset = {}, role, aria = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.dataset, dataset);
  if (role) made.setAttribute("role", role);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(`aria-${name}`, value);
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const place = (id, ...children) =>
  document.getElementById(id).append(...children.flat().filter((child) => child !== null && child !== undefined));
const show = (id) => { document.getElementById(id).hidden = false; };
const small = (text) => element("small", {}, text);

const digits = (value, count = 4) =>
  value === null || value === undefined ? "" : Number(value.toPrecision(count)).toString();
const signed = (fraction, places = 1) => {
  const text = (100 * fraction).toFixed(places);
  return `${fraction > 0 ? "+" : ""}${Number(text) === 0 ? (0).toFixed(places) : text} %`;
};

function withInterval(value, low, high) {
  if (value === null || value === undefined) return "";
  const half = low === null || high === null || low === undefined || high === undefined ? 0 : (high - low) / 2;
  return half > 0 ? [digits(value), small(` ± ${digits(half, 2)}`)] : digits(value);
}

const range = (interval) => interval === null ? "" : small(` [${digits(interval[0])}, ${digits(interval[1])}]`);
const figureText = (row, { of, low, high }) => {
  const [value, half] = [of(row), high && high(row) !== null && low(row) !== null ? (high(row) - low(row)) / 2 : 0];
  if (value === null || value === undefined) return "";
  return half > 0 ? `${digits(value)} ± ${digits(half, 2)}` : digits(value);
};
const flagsOf = (row) => row.flags.map((flag) => element("span", { className: "flag" }, flag));
const identity = (pairs) => element("dl", {}, pairs.map(([name, value]) =>
  [element("dt", {}, name), element("dd", {}, value)]));
const emulated = (title) => data.emulated ? `${title} (emulated)` : title;

// A colour for each of a few names, from violet to orange; the style sheet sets how light it is.
const hue = (place, count) => Math.round(count < 2 ? 205 : 265 - 235 * place / (count - 1));
const MOST_COLOURS = 10;
function colour(row) {
  const number = coloured.names.indexOf(coloured.of(row));
  return number < MOST_COLOURS ? hue(number, Math.min(coloured.names.length, MOST_COLOURS)) : null;
}
function tint(node, hueOrNull) {
  node.style.setProperty("--h", hueOrNull ?? 0);
  if (hueOrNull === null) node.style.setProperty("--s", "0%");
  return node;
}
