// The lists to choose from.

function options(select, list, chosen) {
  const known = JSON.stringify(list);
  if (select.known !== known) {
    select.replaceChildren(...list.map(([value, label]) => make("option", { value: String(value), textContent: label })));
    select.known = known;
  }
  select.value = String(chosen);
}

// Radio buttons: arrow keys and screen readers work.
function choices(box, name, list, chosen) {
  const focused = box.contains(document.activeElement);
  box.replaceChildren(...list.map(({ value, parts }) => {
    const input = make("input", { type: "radio", name, value: String(value) });
    return make("label", { className: "choice" }, input, make("span", {}, ...parts));
  }));
  choose(box, chosen);
  if (focused) box.querySelector("input:checked")?.focus();
}

function choose(box, chosen) {
  for (const input of box.querySelectorAll("input")) input.checked = input.value === String(chosen);
  const [all, one] = [box, box.querySelector("label:has(:checked)") ?? box].map((element) => element.getBoundingClientRect());
  if (one.top < all.top || one.bottom > all.bottom) box.scrollTop += one.top - all.top; // scrolls this list, not the page
  if (one.left < all.left || one.right > all.right) box.scrollLeft += one.left - all.left;
}

function drawGroups(box, step, chosen) {
  const groups = groupsOf(step);
  choices(box, "group", groups.map((group) => {
    const all = rowsOf(step, group);
    const rows = all.filter((row) => row.header.algorithm === all[0].header.algorithm);
    const ticks = make("span", { className: "ticks" }, ...rows.slice(0, 32).map((row) => rewardBar(row, "tick")));
    const steps = stepsOf(rows[0]).length;
    const facts = make("span", { className: "facts", textContent: `${groupFacts(rows)}${steps > 1 ? ` · in ${steps} steps` : ""}` });
    return { value: group, parts: [make("span", { className: "start", textContent: question(rows) }), ticks, facts] };
  }), chosen);
}

function drawResponses(box, rows, metric, chosen) {
  choices(box, "index", rows.map((row) => {
    const reward = row.isReplayed ? REPLAYED : number(row.raw.reward);
    const facts = `${reward} · ${counted(row.length, "token")}${row.raw.truncated ? " · cut off" : ""}`;
    return { value: row.index, parts: [
      make("b", { textContent: `#${row.index}` }), rewardBar(row, "bar"),
      make("span", { className: "facts", textContent: facts }), strip(row, metric),
    ] };
  }), chosen);
}

const REPLAYED = "replayed from an earlier batch";

// Few leaves of a tree are rows, so its mean reward is the value of its root.
function groupFacts(rows) {
  const facts = [];
  const rewards = rows.map((row) => row.raw.reward).filter(Number.isFinite);
  if (rows[0].tree) facts.push(`V ${number(rows[0].tree[0]?.value)}`, "tree");
  else if (rewards.length === 0) facts.push(rows.every((row) => row.isReplayed) ? REPLAYED : "no reward");
  else {
    facts.push(`mean reward ${number(rewards.reduce((a, b) => a + b, 0) / rewards.length)}`);
    if (rewards.length > 1 && unique(rewards).length === 1) facts.push("no signal");
  }
  const isSame = (group) => rows.every((row) => PLACES.get(placeOf({ header: row.header, group, index: row.index }))?.some((one) => one.shard === row.shard && one.hasTextOf(row)));
  const copied = groupsOf(rows[0].header.step).filter((group) => group < rows[0].group).find(isSame);
  if (copied !== undefined) facts.push(`same texts as prompt ${groupsOf(rows[0].header.step).indexOf(copied) + 1}`);
  return facts.join(" · ");
}

// The last long part of a prompt, after chat templates and system prompts.
function question(rows) {
  const prompt = rows.map((row) => row.asked).reduce((a, b) => (b.length < a.length ? b : a));
  const parts = prompt.split(/<\|[^|]*\|>|^(?:system|user|assistant|tool): /m).map((part) => part.trim().replace(/^(user|system|assistant)\n/, ""));
  return shown((parts.findLast((part) => part.length > 12) ?? prompt).slice(0, 200)) || `prompt ${rows[0].group}`;
}

function rewardBar(row, className) {
  const [low, high] = REWARD_RANGE;
  const missing = Number.isFinite(row.raw.reward) ? "" : " missing";
  const box = make("span", { className: `reward ${className}${missing}`, "aria-hidden": "true" });
  const bar = make("i");
  const share = `${(100 * ((row.raw.reward ?? low) - low)) / (high - low)}%`;
  bar.style[className === "tick" ? "height" : "width"] = share;
  box.append(bar);
  return box;
}
