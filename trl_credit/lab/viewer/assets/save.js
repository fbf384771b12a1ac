// What is shown as a file: its numbers as CSV, and a picture of it as PNG.

function download(ending, parts, type) {
  const name = [document.querySelector("h1").textContent, view.step === null ? "" : `step ${view.step}`, LAYOUTS[view.layout]].filter(Boolean).join(" ");
  const href = URL.createObjectURL(new Blob(parts, { type }));
  make("a", { href, download: `${name.replace(/[^\p{L}\p{N}.]+/gu, "_")}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

function saveCsv() {
  download("csv", ["\ufeff", csv(table())], "text/csv");
}

// A text is JSON, in quotation marks: it comes back exactly, and a spreadsheet does not take it for a formula.
function csv(lines) {
  const cell = (value) => {
    // the page has five digits of what is no whole number
    if (typeof value === "number") return !Number.isFinite(value) ? "" : String(Number.isInteger(value) ? value : Number(value.toPrecision(5)));
    return value == null ? "" : `"${(value.text === undefined ? value : JSON.stringify(value.text)).replaceAll('"', '""')}"`;
  };
  return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

// The lines of the CSV file. `{ text }` is a text of the policy or the data.
function table() {
  if (view.layout === "tree") {
    const nodes = groupRows()[0].tree.map((node) => [node.id, node.parent, node.value, node.advantage, node.reward, node.tokens, { text: node.text ?? "" }]);
    return [["node", "parent", "value", "advantage", "reward", "tokens", "text"], ...nodes];
  }
  if (view.layout === "totals") {
    const names = summed();
    const { byToken, byPlace } = sums(names);
    const lines = (kind, rows, key) => rows.flatMap(([place, own]) => [...own].map(([name, { count, sum, size }]) => [kind, key(place), { text: name }, count, sum, size]));
    return [["by", "key", "algorithm", "count", "sum", "sum_abs"], ...lines("token", byToken, (text) => ({ text })), ...lines("position", byPlace, (from) => from + 1)];
  }
  const rows = shownRows();
  const columns = unique(rows.flatMap((row) => Object.keys(row.raw.columns).filter((name) => name !== "tokens" && row.column(name) !== null)));
  const extra = METRIC_NAMES.filter((name) => !columns.includes(name));
  const lines = rows.flatMap((row) => Array.from({ length: row.length }, (_, i) => [
    { text: row.header.algorithm ?? "" }, row.header.step, row.group, row.index, row.raw.reward, i + 1, row.tokenId(i), { text: row.text(i) },
    ...columns.map((name) => row.at(name, i)), ...extra.map((name) => valuesOf(row, name)?.[i]),
  ]));
  return [["algorithm", "step", "group", "index", "reward", "position", "token_id", "token", ...columns, ...extra], ...lines];
}

// --- the picture: text that is laid out here, since a page cannot draw itself ---

const WIDE = 1000; // CSS pixels
const [EDGE, LINE] = [24, 24];
const TALLEST = 8000; // two pixels each: browsers draw no taller canvas

function look(element) {
  const { color, backgroundColor, textDecorationLine, fontStyle, fontWeight } = getComputedStyle(element);
  return { color, ground: backgroundColor, under: /underline|line-through/.test(textDecorationLine) || element.classList.contains("over"), slant: fontStyle, weight: fontWeight };
}

// What stands in the picture: paragraphs of parts `[text, look]`.
function paragraphs() {
  const plain = look(document.body), bold = { ...plain, weight: "600" }, muted = look(BOX.facts);
  const all = [[[document.querySelector("h1").textContent, bold]], [[BOX.facts.textContent, muted]], []];
  const bars = [...BOX.legend.querySelectorAll(".scale i")].map((bar) => ["  ", look(bar)]);
  const ends = BOX.legend.querySelector(".scalebox");
  const scale = [[`${ends.firstChild.textContent} `, muted], ...bars, [` ${ends.lastChild.textContent}`, muted]];
  all.push([[`${METRICS[view.metric].label}  `, bold], ...(view.layout === "totals" ? [] : scale)], []);
  if (["tree", "totals"].includes(view.layout)) {
    for (const line of document.querySelectorAll("#tree summary, #totals tr, #totals h2")) {
      const box = line.closest("section");
      if (box.hidden || !line.checkVisibility()) continue;
      const cells = line.matches("h2") ? [line] : [...line.children];
      const depth = "    ".repeat(line.closest(".node") ? [...document.querySelectorAll(".node")].filter((node) => node.contains(line)).length - 1 : 0);
      const padded = (cell) => (cell.cellIndex ? cell.textContent.slice(0, 24).padStart(11 * cell.colSpan) : cell.textContent.slice(0, 18).padEnd(18));
      const said = line.matches("tr") ? cells.map(padded) : cells.filter((cell) => cell.textContent).map((cell) => `${cell.textContent}  `);
      all.push([[depth + said.join(""), line.matches("h2") ? bold : plain]]);
    }
    return all;
  }
  all.push([[`Prompt  ${DATA.prompts[responseRows()[0].raw.prompt].trim()}`, muted]], []);
  for (const text of texts) {
    text.fill();
    all.push([[text.box.closest(".column").querySelector("h2").innerText.replace(/\s+/g, " "), bold]]);
    const looks = new Map(); // by the class of a token
    all.push(text.spans.map((span, i) => {
      if (!looks.has(span.className)) looks.set(span.className, look(span));
      return [text.row.text(i), looks.get(span.className)];
    }), []);
  }
  return all;
}

function picture(parts) {
  const canvas = make("canvas"), pen = canvas.getContext("2d");
  const write = ({ slant, weight }) => { pen.font = `${slant ?? "normal"} ${weight ?? 400} 15px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`; };
  const placed = [];
  let [x, y] = [EDGE, EDGE];
  for (const paragraph of parts) {
    if (y > TALLEST) break;
    for (const [text, style] of paragraph) {
      write(style);
      for (const line of text.split(/(\n)/)) {
        for (let rest = line === "\n" ? "" : line; rest;) {
          const room = WIDE - EDGE - x, fits = (count) => pen.measureText(rest.slice(0, count)).width <= room;
          let [count, high] = [1, rest.length];
          while (count < high) {
            const middle = (count + high + 1) >> 1;
            if (fits(middle)) count = middle;
            else high = middle - 1;
          }
          if (!fits(count) && x > EDGE) count = 0;
          else if (count < rest.length) count = rest.lastIndexOf(" ", count) + 1 || (x > EDGE ? 0 : count);
          const piece = rest.slice(0, count);
          if (piece) placed.push({ piece, style, x, y, width: pen.measureText(piece).width });
          rest = rest.slice(count);
          [x, y] = rest ? [EDGE, y + LINE] : [x + placed.at(-1).width, y];
        }
        if (line === "\n") [x, y] = [EDGE, y + LINE];
      }
    }
    [x, y] = [EDGE, y + (paragraph.length ? LINE : LINE / 2)];
  }
  const tall = Math.min(y + EDGE, TALLEST);
  if (y > TALLEST) placed.push({ piece: "(cut off)", style: look(BOX.facts), x: EDGE, y: TALLEST - LINE, width: WIDE });
  Object.assign(canvas, { width: 2 * WIDE, height: 2 * tall });
  pen.scale(2, 2);
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, WIDE, tall);
  pen.textBaseline = "middle";
  for (const { piece, style, x: left, y: top, width } of placed) {
    write(style);
    pen.fillStyle = style.ground;
    pen.fillRect(left, top, width, LINE - 3);
    pen.fillStyle = style.color;
    pen.fillText(piece, left, top + LINE / 2 - 1);
    if (style.under) pen.fillRect(left, top + LINE - 5, width, 1);
  }
  return canvas;
}

function savePng() {
  picture(paragraphs()).toBlob((blob) => download("png", [blob], "image/png"));
}
