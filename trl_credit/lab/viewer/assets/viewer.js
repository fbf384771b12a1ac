// What is looked at (`view`), and what keys and pointer do to it.

const BOX = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const SCALES = { own: "each its own", one: "one for all" };
const LAYOUTS = { one: "Response", group: "Group", tree: "Tree", steps: "Over steps", totals: "Totals" };
const view = { step: null, group: null, index: null, token: null, metric: null, base: null, layout: "one", algorithm: null, scale: null };
const drawn = new Map(); // of each part of the page, what it was drawn for

function groupsOf(step) {
  return unique(rowsOf(step).map((row) => row.group));
}

function hasTree(group) {
  return rowsOf(view.step, group)[0].tree !== null;
}

function groupRows() {
  return rowsOf(view.step, view.group).filter((row) => row.header.algorithm === view.algorithm);
}

function responseRows() {
  return rowsOf(view.step, view.group).filter((row) => row.index === view.index);
}

// The steps in which an algorithm has responses to the prompt of a row.
function stepsOf(row) {
  return unique(ROWS.filter((one) => one.header.algorithm === row.header.algorithm && one.asked === row.asked).map((one) => one.header.step));
}

// A response to the prompt that is looked at, in each step that logged one: the same number where there is one.
function stepRows() {
  const [first] = groupRows();
  const all = ROWS.filter((row) => row.header.algorithm === view.algorithm && row.asked === first.asked);
  return stepsOf(first).sort((a, b) => a - b).map((step) => {
    const there = all.filter((row) => row.header.step === step && (step !== view.step || row.group === view.group));
    return there.find((row) => row.index === view.index) ?? there[0];
  });
}

function isHere(row) {
  return ["group", "index"].every((name) => row[name] === view[name]) && row.header.step === view.step;
}

// The place of a row, as fields of `view`.
function fieldsOf(row) {
  return { step: row.header.step, group: row.group, index: row.index };
}

// The rows whose texts are shown.
function shownRows() {
  return { one: responseRows, group: groupRows, steps: stepRows, tree: () => [], totals: () => [] }[view.layout]();
}

function fitting(wanted, choices) {
  return choices.includes(wanted) ? wanted : choices[0] ?? null;
}

// Shows something else; fields that are not given stay if they still exist.
function go(change, { focus = false, scroll = false } = {}) {
  const before = { ...view };
  Object.assign(view, change);
  view.step = fitting(view.step, STEPS);
  view.group = fitting(view.group, [...groupsOf(view.step).filter(hasTree), ...groupsOf(view.step)]);
  const rows = rowsOf(view.step, view.group);
  const algorithms = unique(rows.map((row) => row.header.algorithm));
  view.algorithm = fitting(view.algorithm, algorithms);
  view.base = fitting(view.base ?? (algorithms.length > 2 ? "GRPO" : null), algorithms.length > 1 ? [...algorithms].reverse() : []);
  view.scale = algorithms.length > 1 ? fitting(view.scale, Object.keys(SCALES)) : null;
  view.index = fitting(view.index, unique(rows.map((row) => row.index)));
  const metrics = METRIC_NAMES.filter((name) => name !== "difference" || algorithms.length > 1);
  view.metric = fitting(view.metric, metrics);
  const is = { tree: groupRows()[0]?.tree, steps: groupRows().length && stepsOf(groupRows()[0]).length > 1 };
  const layouts = Object.keys(LAYOUTS).filter((name) => !(name in is) || is[name]);
  view.layout = fitting(view.layout, layouts);
  const moved = ["step", "group", "index"].some((name) => view[name] !== before[name]);
  if (moved && change.token === undefined) view.token = null;
  if (view.token !== null && !responseRows().some((row) => view.token < row.length)) view.token = null;
  draw(rows, layouts, algorithms, metrics);
  point({ focus, scroll, moved: moved && before.index !== null }); // a page that opens stays at its top
  remember();
}

function draw(rows, layouts, algorithms, metrics) {
  options(BOX.step, STEPS.map((step) => [step, String(step)]), view.step);
  options(BOX.metric, metrics.map((name) => [name, METRICS[name].label]), view.metric);
  options(BOX.algorithm, algorithms.map((name) => [name, name]), view.algorithm);
  options(BOX.scale, Object.entries(SCALES), view.scale);
  BOX["scale-choice"].hidden = view.scale === null || view.metric === "difference" || view.layout === "totals";
  options(BOX.base, algorithms.map((name) => [name, name]), view.base);
  BOX["base-choice"].hidden = view.metric !== "difference";
  BOX["step-choice"].hidden = view.step === null;
  BOX["algorithm-choice"].hidden = algorithms.length < 2 || view.layout === "one" || (view.layout === "totals" && algorithms.length <= MANY);
  BOX["algorithm-choice"].firstChild.textContent = rows[0].header.is_run ? "Run " : "Algorithm ";
  const place = [view.step, view.group, view.metric === "difference" && view.base];
  again("layouts", layouts, () => choices(BOX.layouts, "layout", layouts.map((name) => ({ value: name, parts: [LAYOUTS[name]] }))));
  again("groups", [view.step], () => drawGroups(BOX.groups, view.step));
  again("responses", [...place, view.algorithm, view.metric, view.scale], () => drawResponses(BOX.responses, groupRows(), view.metric));
  choose(BOX.layouts, view.layout);
  choose(BOX.groups, view.group);
  choose(BOX.responses, view.index);
  BOX["group-count"].textContent = groupsOf(view.step).length;
  BOX["response-count"].textContent = groupRows().length;
  BOX.facts.textContent = subtitleOf(rows, view.metric);
  again("settings", [view.step], () => drawSettings(BOX.settings, rows));
  const { prompt, answer } = responseRows()[0].raw;
  BOX.prompt.querySelector("div").textContent = DATA.prompts[prompt];
  BOX.answer.hidden = answer === null;
  BOX.answer.querySelector("code").textContent = answer ?? "";
  BOX.tree.hidden = view.layout !== "tree";
  if (view.layout === "tree") {
    again("tree", [...place, view.algorithm], () => showTree(BOX.tree, groupRows(), (index) => go({ index, layout: "one" }, { focus: true })));
  }
  BOX.legend.classList.toggle("bare", view.layout === "totals"); // a table has no colours
  BOX.totals.hidden = view.layout !== "totals";
  if (view.layout === "totals") again("totals", [...place, view.metric, view.algorithm], () => drawTotals(BOX.totals));
  const which = shownRows();
  again("columns", [view.layout, which.map((row) => ROWS.indexOf(row))], () => drawColumns(which, view));
  const visible = view.layout === "one" ? rows : view.layout === "steps" ? which : groupRows();
  const ends = unique(visible.map((row) => scaleEnd(row, view.metric)));
  const end = ends.length === 1 ? ends[0] : null;
  again("legend", [...place, view.metric, view.scale, end], () => {
    drawLegend(BOX.legend, visible, view.metric, end);
    shadeColumns(view.metric);
  });
  drawEnds(view.metric, end === null);
  for (const column of BOX.columns.children) column.classList.toggle("chosen", view.layout !== "one" && isHere(column.row));
}

function again(part, key, redraw) {
  const now = JSON.stringify(key);
  if (drawn.get(part) === now) return;
  drawn.set(part, now);
  redraw();
}

function activeText() {
  const there = texts.filter((text) => isHere(text.row));
  return there.find((text) => text.box === document.activeElement) ?? there[0] ?? texts[0] ?? null;
}

// Puts the cursor at the place of `view`: in one response, or in the same response under each algorithm.
function point({ focus, scroll, moved }) {
  const active = activeText();
  showPanel(view.token, active); // which may take room from the text: before anything is scrolled
  for (const text of texts) {
    const here = text === active || (view.layout === "one" && text.row.common(active.row) > view.token);
    text.point(here ? view.token : null, { scroll: scroll && text === active });
  }
  if (focus) active?.box.focus({ preventScroll: true });
  if (moved && view.layout === "group") active?.box.closest(".column").scrollIntoView({ block: "nearest", inline: "nearest" });
}

function showPanel(i, text) {
  const rows = text === null ? [] : [text.row];
  if (view.layout === "one" && i !== null) rows.push(...responseRows().filter((row) => row !== text?.row && row.common(text.row) > i));
  rows.sort((a, b) => ALGORITHMS.indexOf(a.header.algorithm) - ALGORITHMS.indexOf(b.header.algorithm));
  showToken(BOX.panel, rows, i, (t) => go({ token: t, ...(text && fieldsOf(text.row)) }, { focus: true, scroll: true }));
}

// --- the address has the state of the page, so that it can be shared ---

function remember() {
  const { algorithm, ...said } = view;
  const words = Object.entries(said).filter(([, value]) => value !== null);
  try {
    history.replaceState(null, "", `#${new URLSearchParams(words)}`);
  } catch { /* in a notebook the page has no address */ }
}

function remembered() {
  const said = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const numbers = ["step", "group", "index", "token"].filter((name) => /^\d+$/.test(said[name]));
  return { ...DATA.start, ...Object.fromEntries(numbers.map((name) => [name, Number(said[name])])),
    ...Object.fromEntries(["metric", "base", "layout", "scale"].filter((name) => said[name]).map((name) => [name, said[name]])) };
}

// --- keys and pointer ---

function neighbour(list, value, way) {
  return list[Math.min(Math.max(list.indexOf(value) + way, 0), list.length - 1)];
}

function onKey(event) {
  const text = event.target.view;
  const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: 0, End: 0 }[event.key];
  if (text === undefined || way === undefined || event.ctrlKey || event.metaKey || event.altKey || text.row.length === 0) return;
  event.preventDefault();
  const upright = event.key === "ArrowUp" || event.key === "ArrowDown";
  if (event.shiftKey && upright && view.layout === "steps") return go(fieldsOf(neighbour(stepRows(), stepRows().find(isHere), way)), { focus: true });
  if (event.shiftKey && upright) return go({ step: neighbour(STEPS, view.step, way) }, { focus: true });
  if (event.shiftKey) return go({ index: neighbour(groupRows().map((row) => row.index), view.index, way) }, { focus: true });
  const last = text.row.length - 1;
  const at = isHere(text.row) ? view.token : null;
  const token = event.key === "Home" || at === null ? 0 : event.key === "End" ? last
    : upright ? text.inLine(at, way) : Math.min(Math.max(at + way, 0), last);
  go({ token, ...fieldsOf(text.row) }, { focus: !isHere(text.row), scroll: true });
}

function tokenUnder(event) {
  const span = event.target.closest?.(".token");
  const text = span?.closest(".text")?.view;
  return text === undefined ? null : { text, i: span.i };
}

function listen() {
  BOX.columns.addEventListener("keydown", onKey);
  BOX.columns.addEventListener("pointerover", (event) => {
    const found = tokenUnder(event);
    if (found === null || event.pointerType === "touch") return;
    const same = view.layout === "one" ? texts.filter(({ row }) => row.common(found.text.row) > found.i) : [found.text];
    same.forEach((text) => text.mark(found.i));
    showPanel(found.i, found.text);
  });
  BOX.columns.addEventListener("pointerleave", () => {
    texts.forEach((text) => text.mark(text.current));
    showPanel(view.token, activeText());
  });
  BOX.columns.addEventListener("click", (event) => {
    const found = tokenUnder(event);
    if (found !== null) go({ token: found.i, ...fieldsOf(found.text.row) });
  });
  for (const name of ["step", "group", "index"]) {
    document.addEventListener("change", (event) => {
      if ((event.target.name || event.target.id) === name) go({ [name]: Number(event.target.value) });
    });
  }
  BOX.columns.addEventListener("scroll", ({ target }) => { // stacked texts are of the same tokens, and scroll as one
    if (target.view === undefined || BOX.which.hidden || target.scrollTop === target.followed) return;
    for (const { box } of texts) {
      if (box === target) continue;
      box.view.fill();
      box.scrollTop = target.scrollTop;
      box.followed = box.scrollTop; // so that it does not lead in turn
    }
    delete target.followed;
  }, { capture: true });
  for (const name of ["metric", "base", "layout", "algorithm", "scale"]) {
    document.addEventListener("change", (event) => {
      if ((event.target.name || event.target.id) === name) go({ [name]: event.target.value });
    });
  }
  BOX.search.addEventListener("input", () => search(BOX.search.value));
  BOX.search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") toHit(event.shiftKey ? -1 : 1);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input[type=search], select")) return;
    event.preventDefault();
    BOX.search.focus();
  });
  BOX.csv.addEventListener("click", () => saveCsv());
  BOX.png.addEventListener("click", () => savePng());
  BOX.theme.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  DARK.addEventListener("change", () => setTheme(null));
  window.addEventListener("hashchange", () => go(remembered(), { scroll: true }));
  window.addEventListener("beforeprint", () => texts.forEach((text) => text.fill()));
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const PHONE = matchMedia("(max-width: 760px)"); // as in viewer.css

function isDark() {
  return (document.documentElement.dataset.theme ?? (DARK.matches ? "dark" : "light")) === "dark";
}

function setTheme(theme) {
  if (theme === null) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  BOX.theme.textContent = isDark() ? "Light" : "Dark";
  BOX.theme.title = `Change to ${isDark() ? "light" : "dark"} colours`;
}

setTheme(null);
if (ROWS.length === 0) {
  BOX.columns.append(make("p", { className: "note", textContent: "The log has no responses." }));
} else {
  const start = remembered();
  listen();
  if (PHONE.matches) document.querySelector(".overview")?.removeAttribute("open"); // the first screen shows credit
  go(start, { scroll: true });
  if (start.token === undefined && !PHONE.matches) go({ token: strongest(responseRows()) }); // there the panel hides text
}
performance.mark("ready");
