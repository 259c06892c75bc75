// Axes: from values to places. An axis is at least so wide that noise does not look like a cliff.
const CALM = 0.2; // least width of a linear axis, relative to its middle
const LOGARITHMIC = 8; // ratio of its ends from which on an axis is logarithmic

function numericScale(values, { from, to, calm = CALM, log = null } = {}) {
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(low <= high)) [low, high] = [0, 1];
  const logarithmic = low > 0 && (log ?? high > LOGARITHMIC * low);
  if (logarithmic) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const room = Math.max(0.04 * (b - a), 0.02);
    return scale(a - room, b + room, from, to, Math.log10, logTicks(a - room, b + room));
  }
  const middle = low / 2 + high / 2;
  const least = calm * (Math.abs(middle) || 1);
  const half = Math.max((high / 2 - low / 2) * 1.08, least / 2);
  const [a, b] = [low >= 0 ? Math.max(0, middle - half) : middle - half, middle + half];
  return scale(a, b, from, to, (value) => value, ticks(a, b));
}

function scale(a, b, from, to, put, marks) {
  const at = (value) => from + (to - from) * ((put(value) - a) / (b - a));
  return { at, marks: marks.map((value) => [at(value), digits(value)]) };
}

function ticks(a, b, count = 6) {
  const rough = (b - a) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough) ?? rough;
  const found = [];
  for (let number = Math.ceil(a / step); number * step <= b && found.length < 2 * count; number++) found.push(number * step);
  return found;
}

function logTicks(a, b) {
  const found = [];
  const times = b - a > 3 ? [1] : b - a > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil((b - a) / 8));
  for (let power = Math.floor(a); power <= b; power += every) {
    for (const one of times) {
      const value = one * 10 ** power;
      if (Math.log10(value) >= a && Math.log10(value) <= b) found.push(value);
    }
  }
  return found;
}

function namedScale(names, { from, to }) {
  const step = (to - from) / Math.max(1, names.length);
  const places = new Map(names.map((name, number) => [name, from + step * (number + 0.5)]));
  const every = Math.max(1, Math.ceil(14 / Math.abs(step)));
  const marks = names.filter((_, number) => number % every === 0).map((name) => [places.get(name), name]);
  return { at: (name) => places.get(name), marks, step };
}
