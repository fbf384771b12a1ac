// Search in the texts of prompts and responses.

let sought = "";
let hits = []; // { row, first, last }, in the order of the page; `first` is null for a hit in a prompt

// The tokens of each hit in a row.
function hitsIn(row) {
  return hits.filter((hit) => hit.first !== null && placeOf(hit.row) === placeOf(row) && row.hasTextOf(hit.row)).map(({ first, last }) => [first, last]);
}

function search(text) {
  sought = text.toLowerCase();
  hits = [];
  const asked = new Set();
  for (const row of sought === "" ? [] : ROWS) {
    const prompt = JSON.stringify([row.header.step, row.group, row.asked]);
    if (!asked.has(prompt) && row.asked.toLowerCase().includes(sought)) hits.push({ row, first: null });
    asked.add(prompt);
    if (PLACES.get(placeOf(row)).find((one) => one.hasTextOf(row)) !== row) continue; // under other algorithms it is the same
    const [all, ends] = lowered(row);
    for (let at = all.indexOf(sought); at >= 0; at = all.indexOf(sought, at + sought.length)) {
      hits.push({ row, first: tokenAt(ends, at), last: tokenAt(ends, at + sought.length - 1) });
    }
  }
  BOX.hits.textContent = sought && counted(hits.length, "hit");
  texts.forEach((one) => one.shade(one.metric));
}

// The text of a response in lower case, and where each of its tokens ends there.
function lowered(row) {
  if (!row.kept.has("lowered")) {
    const parts = Array.from({ length: row.length }, (_, i) => row.text(i).toLowerCase());
    let end = 0;
    row.kept.set("lowered", [parts.join(""), parts.map((part) => (end += part.length))]);
  }
  return row.kept.get("lowered");
}

function tokenAt(ends, place) {
  let [low, high] = [0, ends.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > place) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Goes to the next hit (1) or the one before (-1), from the place that is shown.
let atHit = -1;
function toHit(way) {
  if (hits.length === 0) return;
  const isNew = !hits[atHit] || !isHere(hits[atHit].row);
  const here = hits.findIndex(({ row }) => isHere(row));
  atHit = isNew && here >= 0 ? here : (atHit + way + hits.length) % hits.length;
  const { row, first } = hits[atHit];
  BOX.hits.textContent = `${atHit + 1} of ${counted(hits.length, "hit")}`;
  go({ ...fieldsOf(row), token: first, ...(view.layout !== "one" && { algorithm: row.header.algorithm }), ...(["tree", "totals"].includes(view.layout) && { layout: "one" }) }, { scroll: true });
  if (first === null) BOX.prompt.open = true;
}
