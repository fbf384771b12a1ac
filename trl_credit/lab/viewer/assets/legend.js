// What the page shows, in words: the line below the title, the legend, and the settings of the algorithms.

let isDefined = false; // whether the definition of the colours is open

function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function subtitleOf(rows, metric) {
  const [{ header }] = rows;
  const names = unique(rows.map((row) => row.header.algorithm)).filter(Boolean);
  const model = header.model?.split("/").at(-1) ?? "";
  const who = [names.length > MANY ? `${names.length} algorithms` : listed(names)];
  const isTried = names.length > 1 && !header.is_run; // algorithms on the same responses
  if (isTried) who.push("on the same responses");
  if (model) who.push(isTried ? `of ${model}` : `on ${model}`);
  const what = METRICS[metric].words(isTried ? "would be" : "was");
  const begin = [who.filter(Boolean).join(" "), ...(header.step === null ? [] : [`step ${header.step}`])].filter(Boolean).join(", ");
  return begin ? `${begin}: ${what}` : what[0].toUpperCase() + what.slice(1);
}

// The settings of each algorithm that differ from plain GRPO's.
function drawSettings(box, rows) {
  const headers = new Map(rows.map(({ header }) => [header.algorithm, header]));
  box.replaceChildren(...[...headers].flatMap(([name, header]) => {
    const facts = Object.entries(header.settings ?? {}).map(([key, value]) => `${key} ${value}`);
    if (Number.isFinite(header.trace_decay)) facts.push(`trace decay ${number(header.trace_decay)}`);
    if (header.clip) facts.push(`clip ${header.clip.map((one) => number(one)).join("/")}`);
    for (const key of ["beta", "temperature"]) if (Number.isFinite(header[key])) facts.push(`${key} ${number(header[key])}`);
    return [make("dt", { textContent: name || "the run" }), make("dd", { textContent: facts.join(" · ") || "not logged" })];
  }));
}

// Looks of tokens beside the scale of colours, if a token of the group has them.
const SAMPLES = [
  ["over", "beyond", (row, i, metric) => METRICS[metric].max === undefined && Math.abs(valuesOf(row, metric)?.[i]) > scaleEnd(row, metric),
    "What is beyond it is underlined twice."],
  ["unassigned", "unassigned", isEmpty, "Unassigned tokens are left out of the policy term, which is not the same as zero."],
  ["apart", "the texts part", isApart],
  ["outside", "not in the loss", (row, i) => !row.inLoss(i)],
];

function occurs(is, rows, metric) {
  return rows.some((row) => {
    for (let i = 0; i < row.length; i++) if (is(row, i, metric)) return true;
    return false;
  });
}

// `end`: of the scale, or null if each column states its own.
function drawLegend(box, rows, metric, end) {
  const { label, unit, signed, about } = METRICS[metric];
  const levels = Array.from({ length: LEVELS }, (_, k) => k + 1);
  const classes = signed
    ? [...levels.map((k) => `n${k}`).reverse(), "zero", ...levels.map((k) => `p${k}`)]
    : ["zero", ...levels.map((k) => `s${k}`)];
  const [low, high] = end === null ? [signed ? "−end" : "0", signed ? "+end" : "end"] : [signed ? number(-end) : "0", number(end, signed)];
  const scale = make("span", { className: "scalebox" }, low,
    make("span", { className: "scale", "aria-hidden": "true" }, ...classes.map((one) => make("i", { className: one }))), high);
  const there = SAMPLES.filter(([, , is]) => occurs(is, rows, metric));
  const samples = there.map(([name, text]) => {
    const look = name === "over" ? `${signed ? "p" : "s"}6 over` : name;
    return make("span", { className: "sample" }, make("span", { className: `token ${look}`, textContent: "abc" }), ` ${text}`);
  });
  const button = make("button", { id: "define", type: "button", textContent: "?", "aria-label": `What is ${label}?`, "aria-controls": "about" });
  const scaled = view.scale === "own" && metric !== "difference"
    ? "Each algorithm has its own scale, which ends at the 99th percentile of its values in this group, as stated beside "
      + "its name. To compare strengths, choose one scale for all."
    : "The scale ends at the 99th percentile of what is not 0 on this page.";
  const text = [about, ...(METRICS[metric].max ? [] : [scaled]), ...there.map(([, , , more]) => more).filter(Boolean)].join(" ");
  const definition = make("p", { id: "about", className: "note", textContent: text });
  const open = (is) => {
    isDefined = is;
    definition.hidden = !is;
    button.setAttribute("aria-expanded", String(is));
  };
  button.addEventListener("click", () => open(!isDefined));
  open(isDefined);
  box.replaceChildren(
    make("span", { className: "what" }, make("b", { textContent: label }), unit ? `, ${unit}` : ""), scale,
    ...(samples.length ? [make("span", { className: "samples" }, ...samples)] : []), button, definition);
}
