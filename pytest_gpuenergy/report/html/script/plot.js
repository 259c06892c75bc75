// A chart of points with their intervals, as SVG. It is drawn for the width it has, and again when that changes.
const HEIGHT = 320;
const MARGIN = { left: 62, right: 14, top: 10, bottom: 46 };
const waiting = new Set();

// A figure with a caption whose chart is drawn when it scrolls into view, when it is printed, or when it changes.
function chart(kind, title, draw) {
  const area = element("div", { className: "area" });
  const caption = element("figcaption", {}, title);
  const save = element("button", { type: "button", className: "save", title: "Save as SVG" }, "SVG");
  const node = element("figure", { className: `chart ${kind}` }, element("div", { className: "top" }, caption, save), area);
  let width = 0;
  const one = {
    node,
    caption,
    draw() {
      waiting.delete(one);
      width = Math.max(280, Math.round(area.clientWidth || 480));
      try {
        area.replaceChildren(draw(width));
      } catch (problem) {
        area.replaceChildren(element("p", {}, `This chart cannot be drawn: ${problem.message}`));
      }
      node.dataset.drawn = kind;
    },
    again() { if (node.dataset.drawn) one.draw(); },
  };
  waiting.add(one);
  save.addEventListener("click", () => { one.draw(); saveSvg(area.querySelector("svg"), caption.textContent); });
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    if (waiting.has(one)) one.draw();
  }, { rootMargin: "600px" }).observe(node);
  new ResizeObserver(() => {
    if (node.dataset.drawn && area.clientWidth && Math.abs(area.clientWidth - width) > 8) one.draw();
  }).observe(area);
  return one;
}
addEventListener("beforeprint", () => { for (const one of [...waiting]) one.draw(); });

function saveSvg(svg, title) {
  if (!svg) return;
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, number) => {
    const style = getComputedStyle(originals[number]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"]) {
      node.style.setProperty(name, style.getPropertyValue(name));
    }
  });
  const link = element("a", { download: `${title.replace(/[^\w.-]+/g, "-").slice(0, 80)}.svg` });
  link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  link.click();
  URL.revokeObjectURL(link.href);
}

const inside = (width, bottom = MARGIN.bottom) => ({
  x: { from: MARGIN.left, to: width - MARGIN.right }, y: { from: HEIGHT - bottom, to: MARGIN.top }, bottom,
});

function frame(width, label, x, y, xTitle, yTitle, bottom = MARGIN.bottom) {
  const [left, right, low] = [MARGIN.left, width - MARGIN.right, HEIGHT - bottom];
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: 0, "aria-label": label });
  const lines = [...x.marks.map(([at]) => `M${at} ${low}V${MARGIN.top}`), ...y.marks.map(([at]) => `M${left} ${at}H${right}`)];
  svg.append(drawn("path", { class: "grid-lines", d: lines.join("") }));
  const turned = bottom > MARGIN.bottom;
  let end = -Infinity;
  for (const [at, text] of x.marks) {
    const words = turned ? shortened(text, 14) : text;
    const half = turned ? 6 : 3.6 * String(words).length;
    if (at - half < end) continue; // labels do not overlap
    end = at + half;
    svg.append(drawn("text", turned
      ? { class: "tick", "text-anchor": "end", transform: `translate(${at + 4},${low + 12}) rotate(-55)` }
      : { class: "tick", "text-anchor": "middle", x: at, y: low + 16 }, words));
  }
  for (const [at, text] of y.marks) {
    svg.append(drawn("text", { class: "tick", "text-anchor": "end", x: left - 6, y: at + 4 }, shortened(text, 9)));
  }
  svg.append(drawn("text", { class: "axis", "text-anchor": "middle", x: (left + right) / 2, y: HEIGHT - 6 }, xTitle));
  svg.append(drawn("text", { class: "axis", "text-anchor": "middle", transform: `translate(13,${(low + MARGIN.top) / 2}) rotate(-90)` },
    yTitle));
  return svg;
}

const shortened = (text, most) => String(text).length > most ? `${String(text).slice(0, most - 1)}…` : String(text);

// Intervals of all points of one colour are one path.
function whiskers(svg, points) {
  const paths = new Map();
  for (const { x, y, ends, hue: one } of points) {
    const [left, right] = ends.x ?? [x, x];
    const [low, high] = ends.y ?? [y, y];
    const d = `${left !== right ? `M${left} ${y}H${right}` : ""}${low !== high ? `M${x} ${low}V${high}M${x - 3} ${low}h6M${x - 3} ${high}h6` : ""}`;
    if (d) paths.set(one, (paths.get(one) ?? "") + d);
  }
  for (const [one, d] of paths) svg.append(tint(drawn("path", { class: "whisker", d }), one));
}

const CIRCLE = (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
const TRIANGLE = (r) => `M0 ${-1.3 * r}L${1.2 * r} ${0.9 * r}H${-1.2 * r}Z`;

function marks(svg, points) {
  const r = points.length > 1000 ? 2.5 : points.length > 200 ? 3.2 : 4.2;
  for (const { x, y, row, hue: one } of points) {
    const d = row.state === "flagged" ? TRIANGLE(r) : CIRCLE(r);
    svg.append(tint(drawn("path", { class: "mark", d, transform: `translate(${x},${y})` }), one));
    if (row.pareto || row.near_pareto) {
      svg.append(drawn("path", { class: row.pareto ? "ring" : "ring near", d: CIRCLE(r + 3), transform: `translate(${x},${y})` }));
    }
  }
}

function finish(svg, points) {
  const cursor = drawn("path", { class: "cursor", d: CIRCLE(8), display: "none" });
  svg.append(cursor);
  interactive(svg, points, cursor);
  return svg;
}
