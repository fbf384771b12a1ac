"use strict";
// The data of the page: steps, responses, and columns of numbers, which are decoded on first use.

const DATA = JSON.parse(document.getElementById("data").textContent);

function bytesOf(coded) {
  const raw = atob(coded.slice(1));
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// The encodings of columns.py.
function decode(coded, length) {
  if (Array.isArray(coded)) {
    const values = new Float32Array(length);
    for (let i = 0, at = 0; i < coded.length; i += 2) {
      values.fill(coded[i] ?? NaN, at, at + coded[i + 1]);
      at += coded[i + 1];
    }
    return values;
  }
  const bytes = bytesOf(coded);
  if (coded[0] === "b") return Float32Array.from(bytes);
  const words = new Uint32Array(length);
  for (let i = 0; i < length; i++) words[i] = bytes[3 * i] | (bytes[3 * i + 1] << 8) | (bytes[3 * i + 2] << 16);
  if (coded[0] === "u") return words;
  for (let i = 0; i < length; i++) words[i] <<= 8;
  return new Float32Array(words.buffer);
}

// One response as one algorithm credited it.
class Row {
  constructor(shard, raw) {
    Object.assign(this, { shard, raw, header: shard.header, group: raw.group, index: raw.index, length: raw.length });
    this.kept = new Map();
  }

  // An array with one number per token, or null where the log has none.
  column(name) {
    if (!this.kept.has(name)) {
      const coded = this.raw.columns[name];
      const twin = typeof coded === "string" && coded[0] === "=" ? coded.slice(1) : null;
      this.kept.set(name, twin ? this.column(twin) : coded == null ? null : decode(coded, this.length));
    }
    return this.kept.get(name);
  }

  at(name, i) {
    const values = this.column(name);
    return values === null ? NaN : values[i];
  }

  text(i) {
    return DATA.tokens[this.column("tokens")[i]];
  }

  tokenId(i) {
    return DATA.token_ids[this.column("tokens")[i]];
  }

  inLoss(i) {
    return this.column("loss_mask") === null || this.at("loss_mask", i) !== 0;
  }

  // In the loss but not in the policy term: it has no credit, which is not the same as zero credit.
  isUnassigned(i) {
    return this.inLoss(i) && this.column("policy_mask") !== null && this.at("policy_mask", i) === 0;
  }

  // How many tokens from the start are those of another response to the same prompt.
  common(other) {
    if (!this.kept.has(other)) {
      const [own, theirs] = [this.column("tokens"), other.column("tokens")];
      let count = 0;
      if (this.asked === other.asked) while (count < Math.min(own.length, theirs.length) && own[count] === theirs[count]) count++;
      this.kept.set(other, count);
    }
    return this.kept.get(other);
  }

  hasTextOf(other) {
    return this.length === other.length && this.common(other) === this.length;
  }

  get tree() {
    return this.shard.trees[this.group] ?? null;
  }

  // A row of a tree of an earlier batch: neither the tree nor its rewards are logged.
  get isReplayed() {
    return this.header.settings?.rollouts === "tree" && this.tree === null && !this.raw.nodes && !Number.isFinite(this.raw.reward);
  }

  // The original prompt: the prompt of a row of a tree may include the text of nodes.
  get asked() {
    if (!this.kept.has("asked")) this.kept.set("asked", this.promptWithoutNodes());
    return this.kept.get("asked");
  }

  promptWithoutNodes() {
    const prompt = DATA.prompts[this.raw.prompt];
    const { nodes, segment_nodes: own } = this.raw;
    if (this.tree === null || !nodes || !own?.length) return prompt;
    const before = nodes.slice(0, Math.max(nodes.indexOf(own[0]), 0)).map((node) => this.tree[node]?.text ?? "").join("");
    return prompt.endsWith(before) ? prompt.slice(0, prompt.length - before.length) : prompt;
  }
}

const ROWS = DATA.shards.flatMap((shard) => shard.responses.map((raw) => new Row(shard, raw)));
const PLACES = Map.groupBy(ROWS, placeOf); // several algorithms may have credited the response of a place
const ALGORITHMS = unique(ROWS.map((row) => row.header.algorithm)); // of several runs: their names
const STEPS = unique(DATA.shards.map((shard) => shard.header.step)).sort((a, b) => a - b);
const REWARDS = ROWS.map((row) => row.raw.reward).filter(Number.isFinite);
const REWARD_RANGE = [REWARDS.reduce((a, b) => Math.min(a, b), 0), REWARDS.reduce((a, b) => Math.max(a, b), 1)];

function rowsOf(step, group) {
  return ROWS.filter((row) => row.header.step === step && (group === undefined || row.group === group));
}

// What names a response on the page, as text.
function placeOf(row) {
  return `${row.header.step} ${row.group} ${row.index}`;
}

function unique(values) {
  return [...new Set(values)];
}

// Three digits with a minus sign, or a dash for an unknown number.
function number(value, signed = false) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text = size === 0 ? "0" : size < 1e-3 || size >= 1e5 ? size.toExponential(1) : String(Number(size.toPrecision(3)));
  text = text.replace("e-", "e−");
  return (value < 0 ? "−" : signed && value > 0 ? "+" : "") + text;
}

function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

// A token on one line, with visible signs for white space.
function shown(text) {
  if (text === "") return "(part of a character)";
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍").replace(/^ | $/g, "␣");
}

// An element with text content, never HTML.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}
