// The text of a response, a span per token. Spans are made when the response comes into sight.

const CHUNK = 150; // tokens after which the next line break ends a block, so that blocks out of sight cost nothing
const STRIP = 48; // parts that a response's strip has

class TextView {
  constructor(row, label, { metric, eager }) {
    Object.assign(this, { row, metric, spans: null, current: null, marked: [] });
    this.box = make("div", { className: "text", tabIndex: 0, role: "listbox", "aria-orientation": "horizontal", dir: "auto" });
    this.box.setAttribute("aria-label", `${label}, ${counted(row.length, "token")}`);
    this.box.view = this;
    this.box.style.minHeight = `${Math.min(row.length / 12, 30)}em`; // until it is filled
    if (eager) this.fill();
    else NEAR.observe(this.box);
  }

  fill() {
    if (this.spans !== null) return;
    NEAR.unobserve(this.box);
    this.box.style.minHeight = "";
    this.spans = [];
    const [segments, turns] = [this.row.column("segment_ids"), this.row.column("turn_ids")];
    const rewards = this.row.column("step_rewards");
    const hasTurns = turns !== null && unique(turns).length > 1;
    const values = boundaryValues(this.row);
    this.box.classList.toggle("segmented", values.length > 0);
    let chunk = null;
    for (let i = 0; i < this.row.length; i++) {
      const turn = hasTurns && (i === 0 || turns[i] !== turns[i - 1]);
      if (chunk === null || turn || (chunk.size >= CHUNK && this.row.text(i - 1).endsWith("\n"))) {
        if (turn) this.box.append(turnHeading(this.row, i));
        chunk = make("div", { className: hasTurns && turns[i] < 0 ? "chunk tool" : "chunk", role: "presentation" });
        chunk.size = 0;
        this.box.append(chunk);
      }
      if (values.length && segments !== null && segments[i] >= 0 && segments[i] !== segments[i - 1]) {
        chunk.append(boundary(values[segments[i]]));
      }
      const span = tokenSpan(this.row.text(i), i);
      this.spans.push(span);
      chunk.append(span);
      chunk.size += 1;
      if (rewards !== null && Number.isFinite(rewards[i])) chunk.append(stepReward(rewards[i]));
      const last = segments !== null && segments[i] >= 0 && segments[i + 1] !== segments[i];
      if (last && segments[i] + 2 === values.length) chunk.append(boundary(values.at(-1)));
    }
    if (this.row.length === 0) this.box.append(make("p", { className: "note", textContent: "No tokens." }));
    this.shade(this.metric);
  }

  shade(metric) {
    this.metric = metric;
    this.spans?.forEach((span, i) => { span.className = `token ${classOf(this.row, i, metric)}`; });
    for (const [first, last] of hitsIn(this.row)) for (let i = first; i <= last; i++) this.spans?.[i].classList.add("hit");
    const current = this.current;
    this.current = null;
    this.marked = [];
    if (current !== null) this.point(current);
  }

  // Puts the cursor on a token and marks the tokens that contribute to its credit.
  point(i, { scroll = false } = {}) {
    if (this.spans === null && i !== null) this.fill();
    const before = this.spans?.[this.current];
    before?.classList.remove("current");
    for (const name of ["id", "aria-selected", "aria-label"]) before?.removeAttribute(name);
    this.current = i !== null && i < this.row.length ? i : null;
    this.mark(this.current);
    const span = this.spans?.[this.current];
    if (span === undefined) return this.box.removeAttribute("aria-activedescendant");
    span.id = `token-${this.row.header.algorithm}-${this.row.index}`.replace(/\s/g, "_");
    span.classList.add("current");
    span.setAttribute("aria-selected", "true");
    span.setAttribute("aria-label", `${shown(this.row.text(i))}: ${valueText(this.row, i, this.metric)}`);
    this.box.setAttribute("aria-activedescendant", span.id);
    if (scroll) span.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  mark(i) {
    for (const span of this.marked) span.classList.remove("from");
    this.marked = [];
    if (i === null || this.spans === null) return;
    const parts = (contributions(this.row, i) ?? []).filter(({ t }) => t !== i).slice(0, TOP);
    this.marked = parts.map(({ t }) => this.spans[t]);
    for (const span of this.marked) span.classList.add("from");
  }

  // The token nearest in the line above (-1) or below (+1).
  inLine(i, way) {
    const place = (k) => this.spans[k].getClientRects()[0] ?? this.spans[k].getBoundingClientRect();
    const from = place(i);
    let [best, line] = [i, null];
    for (let k = i + way; k >= 0 && k < this.row.length; k += way) {
      const at = place(k);
      if (Math.abs(at.top - from.top) < from.height / 2) continue;
      line ??= at.top;
      if (Math.abs(at.top - line) >= from.height / 2) break;
      if (best === i || Math.abs(at.left - from.left) < Math.abs(place(best).left - from.left)) best = k;
    }
    return best;
  }
}

const NEAR = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => entry.target.view.fill()),
  { rootMargin: "300px" },
);

function tokenSpan(text, i) {
  const span = make("span", { role: "option" });
  span.i = i;
  if (text === "") span.append(make("i", { className: "sign", textContent: "▯" }));
  const lines = text.split("\n");
  lines.forEach((line, k) => {
    if (k > 0) span.append(make("i", { className: "sign", textContent: "↵" }), "\n");
    if (line) span.append(line);
  });
  return span;
}

// V at the begin of each segment and at the end: as logged, or from the nodes of the tree.
function boundaryValues(row) {
  const { segment_values: values, segment_nodes: places } = row.raw;
  if (values || !places || row.tree === null) return values ?? [];
  const before = places.map((place) => row.tree[row.tree[place]?.parent]?.value);
  return [...before, row.tree[places.at(-1)]?.value];
}

function boundary(value) {
  const label = make("b", { textContent: `V ${number(value)}` });
  return make("span", { className: "boundary", role: "presentation", title: "A segment begins or ends here; V is its value" }, label);
}

function stepReward(value) {
  const title = "A step ends here; this is its reward";
  return make("span", { className: "step-reward", role: "presentation", title, textContent: `r ${number(value, true)}` });
}

// The turn that begins at a token, with the rewards of its steps and, if its tokens share one, their advantage.
function turnHeading(row, i) {
  const [turns, rewards, advantages] = ["turn_ids", "step_rewards", "advantages"].map((name) => row.column(name));
  const facts = [turns[i] < 0 ? "not by the policy" : `turn ${turns[i] + 1}`];
  if (turns[i] >= 0) {
    let end = i;
    while (end < row.length && turns[end] === turns[i]) end++;
    const own = rewards?.slice(i, end).filter(Number.isFinite);
    if (own?.length) facts.push(`r ${number(own.reduce((a, b) => a + b, 0), true)}`);
    const shared = unique(advantages?.slice(i, end) ?? []);
    if (shared.length === 1) facts.push(`A ${number(shared[0], true)}`);
  }
  return make("div", { className: "turn", role: "presentation", textContent: facts.join(" · ") });
}

// An overview of a response: the largest value of each part.
function strip(row, metric) {
  const values = valuesOf(row, metric);
  const box = make("span", { className: "strip", "aria-hidden": "true" });
  const parts = Math.min(STRIP, row.length);
  for (let part = 0; part < parts; part++) {
    let chosen = -1;
    for (let i = Math.floor((part * row.length) / parts); i < Math.floor(((part + 1) * row.length) / parts); i++) {
      const counts = row.inLoss(i) && !isEmpty(row, i, metric);
      if (counts && values !== null && (chosen < 0 || Math.abs(values[i]) > Math.abs(values[chosen]))) chosen = i;
    }
    box.append(make("i", { className: chosen < 0 ? "unassigned" : classOf(row, chosen, metric) }));
  }
  return box;
}
