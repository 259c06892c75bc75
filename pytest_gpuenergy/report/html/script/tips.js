// What a point stands for: shown at the pointer, and said to those who step through a chart with the keyboard.
const tip = document.getElementById("tip");

function linesOf(row) {
  const lines = [["", `${row.kernel} of ${row.workload} at ${row.cap}`], ["band", row.band]];
  for (const quantity of quantities.values()) {
    const text = quantity.figure ? figureText(row, quantity) : "";
    if (text) lines.push([quantity.title, text]);
  }
  if (locked && row.effective_sm_clock_mhz !== null) lines.push(["achieved SM clock (MHz)", digits(row.effective_sm_clock_mhz)]);
  if (row.flags.length) lines.push(["flags", row.flag_words]);
  if (row.pareto) lines.push(["", "on the Pareto front"]);
  if (row.near_pareto) lines.push(["", "within noise of the Pareto front"]);
  return lines;
}

function showTip(lines, x, y, spoken) {
  tip.replaceChildren(...lines.map(([name, text]) =>
    element("div", {}, name ? element("span", {}, `${name} `) : null, element("b", {}, text))));
  tip.hidden = false;
  const { offsetWidth: wide, offsetHeight: high } = tip;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - wide - 8))}px`;
  tip.style.top = `${y + high + 20 > innerHeight ? Math.max(4, y - high - 12) : y + 14}px`;
  if (spoken) document.getElementById("said").textContent = lines.map((line) => line.join(" ").trim()).join(", ");
}

const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });

// Points of a chart can be pointed at, tapped, and stepped through with the arrow keys.
function interactive(svg, points, cursor) {
  let at = -1;
  const order = [...points].sort((a, b) => a.x - b.x || a.y - b.y);

  function choose(one, spoken) {
    const box = svg.getBoundingClientRect();
    const ratio = box.width / svg.viewBox.baseVal.width;
    cursor.setAttribute("transform", `translate(${one.x},${one.y})`);
    cursor.removeAttribute("display");
    showTip(one.lines(), box.left + one.x * ratio, box.top + one.y * ratio, spoken);
  }
  function leave() {
    cursor.setAttribute("display", "none");
    hideTip();
  }
  function point(event) {
    const box = svg.getBoundingClientRect();
    const ratio = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    let [found, least] = [null, 24];
    for (const one of points) {
      const far = Math.hypot(one.x - x, one.y - y);
      if (far < least) [found, least] = [one, far];
    }
    if (found) choose(found, false); else leave();
  }
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: order.length - 1 }[event.key];
    if (event.key === "Escape") leave();
    if (to === undefined || order.length === 0) return;
    event.preventDefault();
    at = Math.max(0, Math.min(order.length - 1, to));
    choose(order[at], true);
  });
}
