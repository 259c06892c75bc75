// A sortable table. A column has a title, the key it is sorted by, optionally the cell that is shown, and whether it is of
// numbers, wide, or a detail that is not printed.
// On a narrow screen each row becomes a list of its cells, so roles are given explicitly.
const SHOWN_AT_ONCE = 200;
const classesOf = (column) => [column.number ? "number" : column.wide ? "wide" : "", column.detail ? "detail" : ""].join(" ").trim();

function table(label, columns, rows, { classOf = () => "", idOf = null, atOnce = SHOWN_AT_ONCE } = {}) {
  let sorted = { key: null, descending: false };
  let current = rows;
  let most = atOnce;
  const body = element("tbody", { role: "rowgroup" });
  const note = element("p", { className: "quiet", role: "status" });
  const more = element("button", { type: "button", className: "more" });
  const heads = columns.map((column) => {
    const button = element("button", { type: "button" }, column.title);
    const head = element("th", { scope: "col", role: "columnheader", className: classesOf(column),
      aria: { sort: "none" } }, button);
    button.addEventListener("click", () => {
      const again = sorted.key === column.key;
      sorted = { key: column.key, descending: again && !sorted.descending };
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      fill();
    });
    return head;
  });
  more.addEventListener("click", () => { most += 5 * atOnce; fill(); });

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

  function cellOf(row, column, first) {
    const found = [column.cell ? column.cell(row) : row[column.key] ?? ""].flat(2).filter((one) => one !== "" && one !== null);
    const shown = found.length ? element("span", {}, found) : "";
    const cell = element(first ? "th" : "td", { className: classesOf(column), role: first ? "rowheader" : "cell",
      data: { title: column.title } }, shown);
    if (first) cell.scope = "row";
    if (!column.number) cell.title = cell.textContent;
    return cell;
  }

  function fill() {
    const ordered = sorted.key === null ? current : [...current].sort(compare);
    const some = ordered.slice(0, most);
    body.replaceChildren(...some.map((row) => element("tr", { className: classOf(row), role: "row", ...idOf && { id: idOf(row), tabIndex: -1 } },
      columns.map((column, number) => cellOf(row, column, number === 0)))));
    more.hidden = ordered.length <= some.length;
    more.textContent = `Show ${Math.min(5 * atOnce, ordered.length - some.length)} more of ${ordered.length}`;
    note.textContent = current.length < rows.length ? `${current.length} of ${rows.length} rows` : "";
  }

  fill();
  const whole = element("table", { role: "table", aria: { label } },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)), body);
  const scroll = element("div", { className: "scroll", role: "region", tabIndex: 0, aria: { label } }, whole);
  return {
    node: element("div", {}, note, scroll, more),
    show(some) { current = some; most = atOnce; fill(); },
  };
}
