// Sums of the shown quantity by token and by position.

const LISTED = 40; // tokens
const PARTS = 20; // positions are put into so many parts at most
const SCOPES = { step: "this step", group: "this prompt", all: "all steps" };
let scope = "step";

// The algorithms that stand beside each other in a table.
function summed() {
  const there = unique(rowsOf(view.step, view.group).map((row) => row.header.algorithm));
  return there.length > MANY ? [view.algorithm] : there;
}

// Sums by token and by position, a Map each: key → algorithm → { count, sum, size }, with size = Σ |·|.
function sums(names) {
  const rows = (scope === "all" ? ROWS : rowsOf(view.step, scope === "group" ? view.group : undefined)).filter((row) => names.includes(row.header.algorithm));
  const width = Math.max(1, Math.ceil(rows.reduce((most, row) => Math.max(most, row.length), 0) / PARTS));
  const [byToken, byPlace] = [new Map(), new Map()];
  const add = (map, key, name, value) => {
    if (!map.has(key)) map.set(key, new Map());
    const one = map.get(key).get(name) ?? { count: 0, sum: 0, size: 0 };
    map.get(key).set(name, one);
    one.count += 1;
    one.sum += value;
    one.size += Math.abs(value);
  };
  for (const row of rows) {
    const values = valuesOf(row, view.metric);
    for (let i = 0; values !== null && i < row.length; i++) {
      if (!row.inLoss(i) || isEmpty(row, i, view.metric) || Number.isNaN(values[i])) continue;
      add(byToken, row.text(i), row.header.algorithm, values[i]);
      add(byPlace, Math.floor(i / width) * width, row.header.algorithm, values[i]);
    }
  }
  const size = ([, own]) => Math.max(...[...own.values()].map((one) => one.size));
  return {
    width,
    byToken: [...byToken].sort((a, b) => size(b) - size(a)),
    byPlace: [...byPlace].sort(([a], [b]) => a - b),
  };
}

function drawTotals(box) {
  const names = summed();
  const { width, byToken, byPlace } = sums(names);
  const label = make("label", {}, "Of ", make("select", { id: "scope" }));
  options(label.querySelector("select"), Object.entries(SCOPES), scope);
  label.querySelector("select").addEventListener("change", (event) => {
    scope = event.target.value;
    drawTotals(box);
  });
  const { label: quantity, unit } = METRICS[view.metric];
  const what = `${quantity}${unit ? `, ${unit}` : ""}: tokens in the loss that have a value${names.length > 1 ? "" : `, ${names[0]}`}. `;
  const places = byPlace.map(([from, own]) => [width === 1 ? String(from + 1) : `${from + 1}–${from + width}`, own]);
  box.replaceChildren(
    make("p", { className: "note" }, what, label),
    make("div", { className: "tables" },
      sumTable("token", byToken.slice(0, LISTED).map(([text, own]) => [shown(text), own]), names,
        byToken.length > LISTED ? `The ${LISTED} largest of ${counted(byToken.length, "token")}; the CSV has all.` : ""),
      sumTable("position", places, names, "")));
}

function sumTable(head, lines, names, note) {
  const largest = lines.reduce((most, [, own]) => Math.max(most, ...[...own.values()].map(({ sum }) => Math.abs(sum))), 0) || 1;
  const signed = METRICS[view.metric].signed;
  const rows = lines.map(([key, own]) => make("tr", {}, make("th", { scope: "row" }, make("code", { textContent: key })),
    ...names.flatMap((name) => {
      const one = own.get(name);
      if (!one) return ["–", "–", "–"].map((textContent) => make("td", { textContent }));
      const other = signed ? one.size : one.sum / one.count;
      const sum = make("td", {}, number(one.sum, signed), advantageBar(one.sum, largest));
      return [make("td", { textContent: one.count.toLocaleString("en") }), make("td", { textContent: number(other) }), sum];
    })));
  const heads = [head, ...names.flatMap(() => ["count", signed ? "Σ |·|" : "mean", "Σ"])].map((textContent) => make("th", { scope: "col", textContent }));
  const above = names.length > 1 ? [make("tr", {}, make("td"), ...names.map((textContent) => make("th", { colSpan: 3, textContent })))] : [];
  const table = make("table", {}, make("thead", {}, ...above, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  return make("div", { className: "scroll" }, make("h2", { textContent: `By ${head}` }), ...(note ? [make("p", { className: "note", textContent: note })] : []), table);
}
