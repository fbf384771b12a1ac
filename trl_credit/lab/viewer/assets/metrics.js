// The metrics that colour tokens, and their colour scales.

const LEVELS = 6;
const ZERO = 1e-7; // log-probabilities are float32: what is smaller is rounding

// Between which places a trace decays: tokens, or turns with trace_unit "turn". Without tools a response is one turn.
function turnsOfTrace(row) {
  if ((row.header.settings ?? {}).trace_unit !== "turn") return null;
  return row.column("turn_ids") ?? new Array(row.length).fill(0);
}

function traceMass(row) {
  const [selected, decay, turns] = [row.column("selected"), row.header.trace_decay, turnsOfTrace(row)];
  if (selected === null || !Number.isFinite(decay)) return null;
  const mass = new Float32Array(row.length);
  if (turns !== null) {
    const left = []; // z of each turn
    for (let t = 0; t < row.length; t++) if (selected[t] === 1) left[turns[t]] = 1;
    const arrived = [0];
    for (let turn = 1; turn <= Math.max(...turns); turn++) arrived[turn] = decay * (arrived[turn - 1] + (left[turn - 1] ?? 0));
    return mass.map((_, t) => arrived[turns[t]] ?? 0);
  }
  for (let t = 1; t < row.length; t++) mass[t] = decay * (mass[t - 1] + selected[t - 1]);
  return mass;
}

function both(row, first, second, of) {
  const [a, b] = [row.column(first), row.column(second)];
  return a === null || b === null ? null : a.map((value, i) => of(value, b[i]));
}

// The credit minus that of the same token under `view.base`. Tokens after other tokens are not the same.
function minusBase(row) {
  const base = PLACES.get(placeOf(row)).find((one) => one.header.algorithm === view.base);
  const [own, theirs] = [row.column("credit"), base?.column("credit")];
  if (!own || !theirs) return null;
  return own.map((value, i) => (i < row.common(base) ? value - theirs[i] : NaN));
}

// `words`: what the colours say, below the title; `did`: "was", or "would be" where nothing was trained.
// `assigned`: only tokens in the policy term have a value. `max`: the end of the scale, if not the 99th percentile.
const METRICS = {
  credit: {
    label: "Effective credit", unit: "", signed: true, assigned: true, of: (row) => row.column("credit"),
    words: (did) => `how much each token's log-probability ${did} pushed up (blue) or down (orange)`,
    about: "How hard the loss pushes the log-probability of this token: −∂L/∂ℓ of the policy term, in units of the "
      + "advantage. A token of plain GRPO shows its advantage.",
  },
  difference: {
    label: "Difference in credit", unit: "", signed: true, of: minusBase,
    words: () => `where a token's credit is above that of ${view.base} (blue) or below it (orange)`,
    about: "Effective credit of a token minus that under the other algorithm or run, at the same tokens after the same "
      + "prompt. It is unknown from where the texts part.",
  },
  advantages: {
    label: "Advantage A", unit: "", signed: true, assigned: true, of: (row) => row.column("advantages"),
    words: () => "each token's advantage, positive (blue) or negative (orange)",
    about: "As the credit function returned it.",
  },
  log_weight: {
    label: "Log weight W", unit: "nats", signed: true, assigned: true, of: (row) => row.column("log_weight"),
    words: () => "the logarithm of each token's importance weight, positive (blue) or negative (orange)",
    about: "The loss multiplies the advantage by exp W.",
  },
  trace: {
    label: "Trace mass", unit: "tokens", signed: false, assigned: true, of: traceMass,
    words: () => "how many tokens before each token share in its advantage (strong purple: many)",
    about: "Decayed count of the selected tokens before this one: its advantage reaches them. Selected tokens are underlined.",
  },
  clip: {
    label: "Clipped", unit: "", signed: true, assigned: true, max: 1,
    of: (row) => both(row, "is_clipped", "log_weight", (clipped, weight) => (clipped ? (weight < 0 ? -1 : 1) : 0)),
    words: () => "which tokens are clipped, above the range (blue) or below it (orange)",
    about: "The ratio is above (+) or below (−) the clip range, so the token has no gradient of its own.",
  },
  entropy: {
    label: "Entropy", unit: "nats", signed: false, of: (row) => row.column("entropy"),
    words: () => "how unsure the policy was at each token (strong purple: unsure)",
    about: "Entropy of the next-token distribution under the policy of this step.",
  },
  probability: {
    label: "Probability", unit: "", signed: false, max: 1,
    of: (row) => row.column("trainer_logprobs")?.map(Math.exp) ?? null,
    words: () => "how probable each token was (strong purple: probable)",
    about: "Probability under the policy of this step.",
  },
  mismatch: {
    label: "Engine mismatch", unit: "nats", signed: true,
    of: (row) => both(row, "old_logprobs", "inference_logprobs", (old, engine) => old - engine),
    words: () => "whether a token was more (blue) or less (orange) probable in training than where it was sampled",
    about: "log π of the training model minus log π of the sampling engine.",
  },
  teacher: {
    label: "Teacher", unit: "nats", signed: true,
    of: (row) => both(row, "teacher_logprobs", "old_logprobs", (teacher, old) => teacher - old),
    words: () => "whether the teacher finds a token more (blue) or less (orange) probable than the policy that sampled it",
    about: "log π of the teacher in its context minus log π of the policy that sampled. Unknown without a context.",
  },
  kl_credit: {
    label: "KL credit", unit: "", signed: true, of: (row) => row.column("kl_credit"),
    words: (did) => `how much the KL term alone ${did === "was" ? "pushed" : "would push"} each token's log-probability up (blue) or down (orange)`,
    about: "How hard the KL term pushes the token's log-probability, in units of the advantage.",
  },
};

function valuesOf(row, metric) {
  const key = `metric ${metric} ${metric === "difference" ? view.base : ""}`;
  if (!row.kept.has(key)) row.kept.set(key, METRICS[metric].of(row));
  return row.kept.get(key);
}

const METRIC_NAMES = Object.keys(METRICS).filter((name) => name === "credit"
  || (name === "difference" ? ALGORITHMS.length > 1 : ROWS.some((row) => valuesOf(row, name) !== null)));

const MAXIMA = new Map();

// The end of the scale: the 99th percentile of values other than 0, on the whole page or in the group of a row, under
// its algorithm.
function maximum(metric, one = null) {
  if (METRICS[metric].max) return METRICS[metric].max;
  const key = JSON.stringify([metric, metric === "difference" && view.base, one?.header.algorithm, one?.header.step, one?.group]);
  if (!MAXIMA.has(key)) {
    const rows = one === null ? ROWS : rowsOf(one.header.step, one.group).filter((row) => row.header.algorithm === one.header.algorithm);
    const sizes = new Float32Array(rows.reduce((total, row) => total + row.length, 0));
    let count = 0;
    for (const row of rows) {
      const values = valuesOf(row, metric);
      const [inLoss, assigned] = [row.column("loss_mask"), METRICS[metric].assigned ? row.column("policy_mask") : null];
      for (let i = 0; values !== null && i < row.length; i++) {
        const size = Math.abs(values[i]);
        if (!(size > ZERO) || inLoss?.[i] === 0) continue;
        if (assigned?.[i] !== 0 || metric === "credit") sizes[count++] = size; // through a trace, credit reaches all
      }
    }
    const sorted = sizes.subarray(0, count).sort();
    MAXIMA.set(key, sorted[Math.ceil(0.99 * (sorted.length - 1))] ?? 1);
  }
  return MAXIMA.get(key);
}

// The end of the scale of a row. A difference reads two algorithms, so its scale is the same for all.
function scaleEnd(row, metric) {
  return maximum(metric, view.scale === "own" && metric !== "difference" ? row : null);
}

function levelClass(value, metric, end) {
  const size = Math.abs(value);
  if (size <= ZERO) return "zero";
  const letter = !METRICS[metric].signed ? "s" : value > 0 ? "p" : "n";
  const level = Math.ceil((size / end) * LEVELS);
  return `${letter}${Math.min(Math.max(level, 1), LEVELS)}${level > LEVELS ? " over" : ""}`;
}

// Whether a token has no value because it is not in the policy term. It may still have credit through a trace.
function isEmpty(row, i, metric) {
  return Boolean(METRICS[metric].assigned) && row.isUnassigned(i)
    && !(metric === "credit" && Math.abs(row.at("credit", i)) > ZERO);
}

// Whether a difference is unknown because the texts are not the same up to here.
function isApart(row, i, metric) {
  return metric === "difference" && Number.isNaN(valuesOf(row, metric)?.[i] ?? NaN) && !Number.isNaN(row.at("credit", i));
}

function classOf(row, i, metric) {
  if (!row.inLoss(i)) return "outside";
  const value = valuesOf(row, metric)?.[i] ?? NaN;
  if (isEmpty(row, i, metric)) return "unassigned";
  const mark = row.isUnassigned(i) ? " masked" : metric === "trace" && row.at("selected", i) === 1 ? " selected" : "";
  return (Number.isNaN(value) ? (isApart(row, i, metric) ? "apart" : "unknown") : levelClass(value, metric, scaleEnd(row, metric))) + mark;
}

// The token of largest |credit| of a response, under the first algorithm whose credit is not the same for all tokens.
// Null if there is none.
function strongest(rows) {
  let first = null;
  for (const row of rows) {
    const sizes = Array.from(row.column("credit") ?? [], (credit, i) => (row.inLoss(i) && Math.abs(credit) > ZERO ? Math.abs(credit) : 0));
    const largest = sizes.reduce((a, b) => Math.max(a, b), 0);
    if (largest === 0) continue;
    first ??= sizes.indexOf(largest);
    if (sizes.some((size, i) => row.inLoss(i) && size < largest)) return sizes.indexOf(largest);
  }
  return first;
}

// The value of a token as text.
function valueText(row, i, metric) {
  if (!row.inLoss(i)) return "not in the loss";
  const { label, unit, signed } = METRICS[metric];
  if (isEmpty(row, i, metric)) return `${label} unassigned`;
  return `${label} ${number(valuesOf(row, metric)?.[i], signed)}${unit ? ` ${unit}` : ""}`;
}

// The contributions to a token's credit: A·ρ of itself and, through the trace, of later tokens. Null without a trace,
// or if they do not add up to the credit (a loss weight, a custom credit function).
function contributions(row, k) {
  const [decay, settings] = [row.header.trace_decay, row.header.settings ?? {}];
  const [selected, advantage, weight] = ["selected", "advantages", "log_weight"].map((name) => row.column(name));
  if (!Number.isFinite(decay) || [selected, advantage, weight].includes(null) || !Number.isFinite(row.at("credit", k))) return null;
  const [parts, turns] = [[], turnsOfTrace(row)];
  const place = (t) => (turns === null ? t : turns[t]);
  const share = turns === null ? 1 : turns.filter((turn, t) => turn === turns[k] && row.inLoss(t)).length;
  let sum = 0;
  for (let t = k; t < row.length; t++) {
    if (t > k && place(t) === place(k)) continue; // tokens of one turn do not reach each other
    if (!row.inLoss(t) || row.isUnassigned(t) || row.at("is_clipped", t) === 1) continue;
    const lag = place(t) - place(k);
    const reach = settings.trace_style === "both" ? Math.max(decay ** lag, decay ** place(k)) : decay ** lag;
    const through = t > k ? reach * selected[k] / share : settings.leave_own_out === false ? selected[k] : 1;
    const value = advantage[t] * Math.exp(weight[t]) * through;
    if (Math.abs(value) > ZERO) parts.push({ t, value });
    sum += value;
  }
  if (Math.abs(sum - row.at("credit", k)) > 0.01 * Math.max(Math.abs(sum), maximum("credit") / 10)) return null;
  return parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
}
