// The texts side by side: a response, the same response under each algorithm, or all responses of a group.

const MANY = 3; // more algorithms are stacked, since they do not fit side by side
let texts = []; // a TextView per column

function factsOf(row) {
  const rewards = Object.entries(row.raw.rewards ?? {}).map(([name, value]) => `${name} ${number(value)}`);
  return [...(rewards.length > 1 ? rewards : []), counted(row.length, "token"), ...(row.raw.truncated ? ["cut off at the limit"] : [])].join(" · ");
}

function rewardText(row) {
  return row.isReplayed ? REPLAYED : `reward ${number(row.raw.reward)}`;
}

// `rows` are responses of a group, one to the same prompt in each step, or one under each algorithm or of each run.
function drawColumns(rows, { layout, metric }) {
  for (const text of texts) NEAR.unobserve(text.box);
  const compared = layout === "one" && rows.length > 1;
  const shared = compared && rows.every((row) => row.hasTextOf(rows[0]));
  BOX.columns.className = layout === "group" ? "grid" : layout === "steps" ? "stacked" : !compared ? "" : rows.length > MANY ? "stacked" : "compared";
  BOX.which.hidden = !shared;
  if (shared) BOX.which.replaceChildren(make("b", { textContent: `Response ${rows[0].index}` }), ` ${rewardText(rows[0])} · ${factsOf(rows[0])}`);
  texts = [];
  BOX.columns.replaceChildren(...rows.map((row) => {
    const title = compared ? row.header.algorithm : layout === "steps" ? `Step ${row.header.step}` : `Response ${row.index}`;
    const text = new TextView(row, compared ? `Response ${row.index}, ${title}` : title, { metric, eager: layout === "one" && rows.length < 5 });
    texts.push(text);
    const [reward, ofGroup] = [` ${rewardText(row)}`, `group: ${groupFacts(rowsOf(row.header.step, row.group).filter((one) => one.shard === row.shard))}`];
    const said = shared ? [] : layout === "steps" ? [reward, make("br"), ofGroup] : [reward];
    const heading = make("h2", {}, title, make("span", { className: "facts" }, ...said), make("span", { className: "facts end" }));
    const facts = shared || layout === "steps" ? [] : [make("p", { className: "facts", textContent: factsOf(row) })];
    const column = make("article", { className: row.length > STRIP ? "column" : "column short" }, heading, ...facts, strip(row, metric), text.box);
    column.row = row;
    return column;
  }));
}

function shadeColumns(metric) {
  for (const text of texts) {
    text.shade(metric);
    text.box.closest(".column").querySelector(".strip").replaceWith(strip(text.row, metric));
  }
}

// States beside each column where its own scale of colours ends.
function drawEnds(metric, isShown) {
  const sign = METRICS[metric].signed ? "±" : "";
  for (const text of texts) {
    const end = isShown ? ` colours end at ${sign}${number(scaleEnd(text.row, metric))}` : "";
    text.box.closest(".column").querySelector(".end").textContent = end;
  }
}
