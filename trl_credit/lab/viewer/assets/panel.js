// All numbers of one token under each algorithm, and the contributions to its credit.

const TOP = 8; // contributions that are listed and marked

const NUMBERS = [
  ["Effective credit", (row, i) => (isEmpty(row, i, "credit") ? "unassigned" : number(row.at("credit", i), true))],
  ["KL credit", (row, i) => number(row.at("kl_credit", i), true), "kl_credit"],
  ["d, teacher − policy", (row, i) => number(valuesOf(row, "teacher")?.[i], true), "teacher_logprobs"],
  ["Advantage A", (row, i) => number(row.at("advantages", i), true)],
  ["In the policy term", (row, i) => (row.inLoss(i) ? yes(row.at("policy_mask", i)) : "not in the loss")],
  ["Log weight W", (row, i) => number(row.at("log_weight", i), true)],
  ["Ratio exp W", (row, i) => number(Math.exp(row.at("log_weight", i)))],
  ["Clipped", (row, i) => yes(row.at("is_clipped", i))],
  ["Leaves a trace", (row, i) => yes(row.at("selected", i)), "selected"],
  ["Trace mass", (row, i) => number(valuesOf(row, "trace")?.[i]), "selected"],
  ["Entropy, nats", (row, i) => number(row.at("entropy", i))],
  ["Probability", (row, i) => number(Math.exp(row.at("trainer_logprobs", i)))],
  ["Probability, teacher", (row, i) => number(Math.exp(row.at("teacher_logprobs", i))), "teacher_logprobs"],
  ["log π", (row, i) => number(row.at("trainer_logprobs", i))],
  ["log π, sampled", (row, i) => number(row.at("old_logprobs", i))],
  ["log π, engine", (row, i) => number(row.at("inference_logprobs", i)), "inference_logprobs"],
  ["log π, reference", (row, i) => number(row.at("ref_logprobs", i)), "ref_logprobs"],
  ["log π, teacher", (row, i) => number(row.at("teacher_logprobs", i)), "teacher_logprobs"],
  ["Segment", (row, i) => segmentText(row, i), "segment_ids"],
  ["Step reward", (row, i) => number(row.at("step_rewards", i), true), "step_rewards"],
  ["Turn", (row, i) => (row.at("turn_ids", i) < 0 ? "not the policy's" : number(row.at("turn_ids", i) + 1)), "turn_ids"],
];

function yes(value) {
  return Number.isNaN(value) ? "–" : value === 1 ? "yes" : "no";
}

function segmentText(row, i) {
  const [segment, values] = [row.at("segment_ids", i), boundaryValues(row)];
  if (!(segment >= 0)) return "none";
  if (values.length === 0) return number(segment);
  const node = row.tree?.[row.raw.segment_nodes?.[segment]];
  const end = node ? node.value : values[segment + 1];
  return `${segment}: V ${number(values[segment])}${end === undefined ? "" : ` → ${number(end)}`}`;
}

function showToken(box, rows, i, onToken) {
  box.replaceChildren();
  rows = rows.filter((row) => i !== null && i < row.length);
  if (rows.length === 0) {
    box.append(make("h2", { textContent: "Token" }), make("p", { className: "note", textContent:
      "Tap a token or point at it. By keyboard: Tab to the text, then the arrow keys." }));
    return;
  }
  const [row] = rows;
  box.append(make("h2", {}, make("code", { textContent: shown(row.text(i)) })));
  const id = row.tokenId(i);
  box.append(make("p", { className: "note", textContent:
    `token ${i + 1} of ${row.length.toLocaleString("en")}${id === null ? "" : ` · id ${id}`}` }));
  if (rows.length > MANY) {
    box.append(manyTable(rows, i), ...sharedTable(rows, i));
  } else {
    box.append(make("div", { className: "scroll" }, numberTable(rows, i)));
  }
  const origins = new Map(); // equal ones are shown once, with the names of all their algorithms
  for (const one of rows) {
    const found = origin(one, i);
    const key = JSON.stringify(found);
    if (found !== null) origins.set(key, { found, names: [...(origins.get(key)?.names ?? []), one.header.algorithm] });
  }
  for (const { found, names } of origins.values()) {
    box.append(...originBox(row, i, found, rows.length > 1 ? `: ${names.join(" and ")}` : "", onToken));
  }
  box.append(...membersBox(row, i));
}

// The responses of the group that have the same text up to a token, with their mean reward.
function membersBox(row, i) {
  const group = rowsOf(row.header.step, row.group).filter((one) => one.header.algorithm === row.header.algorithm);
  if (group.length < 2 || row.tree) return [];
  const same = group.filter((one) => one === row || one.common(row) > i);
  const rewards = same.map((one) => one.raw.reward).filter(Number.isFinite);
  const mean = rewards.length ? `, mean reward ${number(rewards.reduce((a, b) => a + b, 0) / rewards.length)}` : "";
  const buttons = same.filter((one) => one !== row).slice(0, 16).map((one) => {
    const button = make("button", { type: "button", textContent: `#${one.index}`, title: rewardText(one) });
    button.addEventListener("click", () => go({ index: one.index, token: i }, { focus: true, scroll: true }));
    return button;
  });
  const said = `${same.length} of ${counted(group.length, "response")} have the same text up to this token${mean}`;
  return [make("h3", { textContent: "In the group" }), make("p", { textContent: said }), make("p", { className: "members" }, ...buttons)];
}

// A column per algorithm.
function numberTable(rows, i) {
  const table = make("table");
  if (rows.length > 1) {
    const names = rows.map((one) => make("th", { scope: "col", textContent: one.header.algorithm }));
    table.append(make("thead", {}, make("tr", {}, make("td"), ...names)));
  }
  const body = make("tbody");
  for (const [label, of, needed] of NUMBERS) {
    if (needed && rows.every((one) => one.column(needed) === null)) continue;
    body.append(line(label, rows.map((one) => of(one, i))));
  }
  table.append(body);
  return table;
}

function line(name, values) {
  return make("tr", {}, make("th", { scope: "row", textContent: name }), ...values.map((text) => make("td", { textContent: text })));
}

// If there are too many algorithms for columns: a line per algorithm with the numbers that differ.
const MAIN = { "Effective credit": "Credit", "Advantage A": "A", "Log weight W": "W" };

function manyTable(rows, i) {
  const shown = NUMBERS.filter(([label]) => label in MAIN);
  const heads = shown.map(([label]) => make("th", { scope: "col", textContent: MAIN[label], title: label }));
  const lines = rows.map((row) => line(row.header.algorithm, shown.map(([, of]) => of(row, i))));
  return make("table", { className: "many" }, make("thead", {}, make("tr", {}, make("td"), ...heads)), make("tbody", {}, ...lines));
}

// Numbers that are equal under all algorithms.
function sharedTable(rows, i) {
  const lines = [];
  for (const [label, of, needed] of NUMBERS) {
    if (label in MAIN || (needed && rows.some((row) => row.column(needed) === null))) continue;
    const values = unique(rows.map((row) => of(row, i)));
    if (values.length === 1 && values[0] !== "–") lines.push(line(label, values));
  }
  if (lines.length === 0) return [];
  return [make("h3", { textContent: "The same for all" }), make("table", { className: "shared" }, make("tbody", {}, ...lines))];
}

// Where the credit of a token came from, in words and numbers as they are shown. Null without a trace.
function origin(row, i) {
  if (!Number.isFinite(row.header.trace_decay) || !row.inLoss(i) || row.column("selected") === null) return null;
  const parts = contributions(row, i);
  if (parts === null) return { note: "The contributions through the trace do not add up to this credit.", count: 0, largest: [] };
  const later = parts.filter(({ t }) => t !== i);
  const own = parts.find(({ t }) => t === i)?.value ?? 0;
  const sum = later.reduce((total, { value }) => total + value, 0);
  const text = later.length
    ? `${number(own, true)} of its own, ${number(sum, true)} through its trace from ${counted(later.length, "later token")}`
    : `${number(own, true)} of its own; no later token reaches it`;
  return { text, count: later.length, largest: later.slice(0, TOP).map(({ t, value }) => [t, number(value, true)]) };
}

function originBox(row, i, { note, text, count, largest }, names, onToken) {
  const list = make("ol", { className: "origins" }, ...largest.map(([t, value]) => {
    const button = make("button", { type: "button" }, make("code", { textContent: shown(row.text(t)) }), ` +${t - i}`, make("b", { textContent: value }));
    button.title = `Token ${t + 1}, ${counted(t - i, "token")} later`;
    button.addEventListener("click", () => onToken(t));
    return make("li", {}, button);
  }));
  const most = count > TOP ? [make("p", { className: "note", textContent: `The ${TOP} largest, marked in the text:` })] : [];
  const said = make("p", { className: note ? "note" : "", textContent: note ?? text });
  return [make("h3", { textContent: `Where it came from${names}` }), said, ...most, list];
}
