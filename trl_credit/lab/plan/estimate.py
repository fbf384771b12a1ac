"""Puts the settings of a run and the sizes of a model into the formulas."""

from dataclasses import dataclass
from math import ceil, inf

from ...config import CreditConfig
from .formulas import Layout, Shape, memory, prompts_on, segment_starts, tree_size


UNSURE = 0.2  # assumed share of tokens below `probability_threshold`
STEP_TOKENS = 30  # assumed tokens of a step
OF_POLICY = ("policy", "reference")  # teachers that are no other model


@dataclass(frozen=True)
class Range:
    """An expected value, and the largest possible one."""

    mean: float
    most: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.mean + other.mean, self.most + other.most)

    def __mul__(self, factor: float) -> "Range":
        return Range(self.mean * factor, self.most * factor)


@dataclass
class Assumed:
    """What a plan needs besides the settings of a run. `None` means unknown.

    Attributes:
        prompt: Mean tokens of a prompt; `None`: half of `longest_prompt`, or 256 if that is unknown too.
        response: Mean tokens of a response; `None`: half of `max_completion_length`.
        segments: Mean segments of a response; `None`: by the settings.
        prompts: Rows of the data set.
        longest_prompt: `max_prompt_tokens`, if it is set.
    """

    prompt: float | None = None
    response: float | None = None
    segments: float | None = None
    prompts: int | None = None
    longest_prompt: int | None = None


@dataclass
class Plan:
    """The size of a run.

    Attributes:
        step: Amounts per optimizer step by name: prompts, responses (the leaves of trees), continuations of a chain or
            nodes of trees, generated tokens, tokens of each kind of forward pass.
        memory: Bytes per GPU by purpose.
        batches_per_step: Generation batches per optimizer step.
        steps: Optimizer steps of the run, `None` if the number of prompts is unknown.
        notes: Assumptions, one sentence each.
    """

    step: dict[str, Range]
    memory: dict[str, float]
    batches_per_step: float
    steps: int | None
    notes: list[str]


def make_plan(args: CreditConfig, shape: Shape, layout: Layout, assumed: Assumed) -> Plan:
    """The plan of a run.

    Args:
        args ([`CreditConfig`]):
            Built as for one process with the rows of all: `per_device_train_batch_size` is summed over processes.
        shape ([`~trl_credit.lab.plan.formulas.Shape`]):
            Sizes of the model.
        layout ([`~trl_credit.lab.plan.formulas.Layout`]):
            Distribution over GPUs.
        assumed ([`Assumed`]):
            What the settings do not give.
    """
    notes = [] if shape.source is None else [shape.source]
    if args.max_completion_length is None:  # the rest of the context
        args.max_completion_length = (args.use_vllm and args.vllm_max_model_length) or shape.context
        notes.append(f"max_completion_length=None: the rest of a context of {args.max_completion_length:,} tokens")
    if args.groups == "refill":
        limit = f"and at most {1 + args.max_refills} times as much (max_refills)"
        notes.append(f"no refills: if half of the groups have signal, sampling takes twice as much, {limit}")
    rows, most = args.per_device_train_batch_size * args.steps_per_generation, args.max_completion_length
    prompts = rows / args.num_generations
    prompt = _prompt(assumed, notes)
    mean, why = (most / 2, ", half of the most") if assumed.response is None else (assumed.response, "")
    notes.append(f"responses of {mean:,.0f} tokens on average{why} (--response_length)")
    length = Range(min(mean, most), most)
    # amounts of a generation batch
    batch = {"prompts": Range(prompts, prompts), "responses": Range(rows, rows)}
    generated, row, stored = length * rows, prompt + length, Range(0, 0)
    if args.rollouts == "chain":
        batch["continuations"], tokens = _chain(args, assumed, length.mean, rows, layout.processes, notes)
        generated += tokens
    elif args.rollouts == "tree":
        batch["responses"], batch["nodes"], generated, row = _trees(args, prompts, prompt, length, notes)
        if args.replay_iterations > 1 and not args.use_vllm:
            stored = prompt * prompts + generated  # π_old of the rows that are kept for later batches
        if batch["nodes"].mean < rows:
            filled = int(batch["nodes"].mean)
            notes.append(f"trees have {filled:,} nodes for the {rows:,} rows of a batch: the other rows are empty")
            rows = filled
    scored = row + _added(args, layout, length, notes)
    batch |= {
        "generated tokens": generated,
        "tokens of passes: π_old": row * rows * needs_old(args) + stored,
        "tokens of passes: reference": row * rows * (args.beta != 0.0),
        "tokens of passes: teacher": scored * rows * (args.teacher is not None),
        "tokens of passes: loss": row * rows * args.num_iterations,
    }
    batches_per_step = args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)
    longest = args.vllm_max_model_length if args.use_vllm and args.vllm_max_model_length else inf
    size, widest = args.per_device_train_batch_size // layout.processes, int(min(prompt.most + most, longest))
    if args.use_vllm and args.vllm_mode == "colocate":
        asleep = ", which sleeps while the model trains" if args.vllm_enable_sleep_mode else ""
        weights = f"{2 * shape.parameters / args.vllm_tensor_parallel_size / 1024**3:.1f} GiB are weights"
        share = f"{args.vllm_gpu_memory_utilization:.0%} of each GPU, of which {weights}"
        notes.append(f"memory does not include the colocated vLLM{asleep}: {share}")
    notes.append(f"a micro-batch of {size} rows of {widest:,} tokens (the longest prompt and response) in memory")
    step = {name: amount * batches_per_step for name, amount in batch.items() if amount.most}
    bytes_of = memory(shape, layout, tokens=size * widest, scored=size * most)
    return Plan(step, bytes_of, batches_per_step, _steps(args, assumed.prompts), notes)


def needs_old(args: CreditConfig) -> bool:
    """Whether there is a forward pass for π_old over the rows of a generation batch."""
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    if args.behavior_logps == "sampler" and (corrected or not args.is_aligned):
        return False
    return not args.is_aligned or corrected or args.rollouts == "chain"


def _added(args: CreditConfig, layout: Layout, length: Range, notes: list[str]) -> Range:
    """Tokens that a teacher sees besides prompt and response."""
    if args.teacher not in (None, *OF_POLICY) and layout.teacher == 0:
        notes.append(f"the size of the teacher {args.teacher} is unknown: its memory is not counted")
    if args.reads_success:
        notes.append("every group has right responses, and the teacher sees one with each prompt")
        return length
    if args.teacher_prompt is not None:
        notes.append("the teacher's contexts are as long as the prompts: what teacher_prompt adds is not counted")
    return Range(0, 0)


def _prompt(assumed: Assumed, notes: list[str]) -> Range:
    """Tokens of a prompt."""
    longest, mean, why = assumed.longest_prompt, assumed.prompt, ""
    most = longest or mean or 512
    if mean is None:
        mean, why = most / 2, ", a guess" if longest is None else ", half of max_prompt_tokens"
    notes.append(f"prompts of {mean:,.0f} tokens on average{why} (--prompt_length)")
    if longest is None:
        notes.append(f"prompts of at most {most:,.0f} tokens; no setting limits them (max_prompt_tokens)")
    return Range(mean, max(mean, most))


def _trees(
    args: CreditConfig, prompts: float, prompt: Range, length: Range, notes: list[str]
) -> tuple[Range, Range, Range, Range]:
    """Leaves, nodes and tokens of the trees of a generation batch, and the tokens of a row of training."""
    sizes = {"branching": args.tree_branching, "segment": args.tree_segment_length}
    expected, largest = tree_size(**sizes, length=length.mean), tree_size(**sizes, length=length.most)
    notes.append("every path of a tree is as long as a response is on average")
    row = prompt + length
    if args.tree_rows == "nodes":
        notes.append("all nodes of a tree are equally likely to be rows")
        row = prompt + Range(expected.path_tokens / max(expected.nodes, 1), length.most)
    elif args.tree_rows == "packed":
        per_tree = args.num_generations
        notes.append(f"the nodes of a tree packed into {per_tree} rows of equal length; every node has an advantage")
        # a branch repeats the token before it, and a row repeats the path that it continues
        path = args.tree_segment_length * (len(args.tree_branching) - 1)
        row = prompt + Range(*((tree.tokens + tree.nodes) / per_tree + path for tree in (expected, largest)))
    nodes, tokens, _, leaves = (Range(*sizes) * prompts for sizes in zip(expected, largest, strict=True))
    return leaves, nodes, tokens, row


def _chain(
    args: CreditConfig, assumed: Assumed, length: float, rows: int, processes: int, notes: list[str]
) -> tuple[Range, Range]:
    """Continuations of a generation batch, and their tokens."""
    shared = prompts_on(rows // processes, args.num_generations, processes)
    at_first = not args.uses_released_code("spo_first_cutpoint")
    values_start = at_first and args.initial_value != "group"
    segments = _segments(args, assumed, length, notes) - (at_first and not values_start)
    if args.max_valued_steps is not None:
        segments = min(segments, args.max_valued_steps + values_start)
    later = rows * max(0.0, segments - values_start)
    starts = shared * values_start  # all of a response is left there, and half of it elsewhere
    notes.append("equal prefixes at the first token only; half of a response left at the others")
    begins = _most_begins(args, at_first)
    # a prompt is continued once for all of its responses
    counts = [shared if place == 0 else rows for place in begins]
    most = sum(n * (args.max_completion_length - place) for n, place in zip(counts, begins, strict=True))
    tokens = Range((later / 2 + starts) * length, most)
    return Range(later + starts, sum(counts)) * args.rollouts_per_state, tokens * args.rollouts_per_state


def _segments(args: CreditConfig, assumed: Assumed, length: float, notes: list[str]) -> float:
    """Mean segments of a response."""
    if assumed.segments is not None:
        notes.append(f"{assumed.segments:.1f} segments of a response (--segments)")
        return assumed.segments
    if args.segmentation == "fixed_length":
        return max(1.0, length / args.segment_length)
    if args.segmentation in ("fixed_count", "cutpoints") and args.num_segments is not None:
        return min(args.num_segments, length)
    if args.segmentation == "cutpoints":
        segments = 1 + UNSURE * length / args.cutpoint_interval
        why = f"{UNSURE:.0%} of tokens less sure than {args.probability_threshold}"
    else:
        segments, why = max(1.0, length / STEP_TOKENS), f"steps of {STEP_TOKENS} tokens"
    notes.append(f"{why}: {segments:.1f} segments (--segments)")
    return segments


def _most_begins(args: CreditConfig, at_first: bool) -> list[int]:
    """The valued places of the response that costs most."""
    step, count = 1, None
    if args.segmentation == "fixed_length":
        step = args.segment_length
    elif args.segmentation == "cutpoints" and args.num_segments is None:
        step = args.cutpoint_interval
    elif args.segmentation in ("cutpoints", "fixed_count"):  # most is left to write if all segments begin early
        count = args.num_segments
    first = int(not at_first)  # where a first cutpoint costs most: the state before the first token is shared
    last = args.segmentation != "cutpoints" or args.uses_released_code("spo_last_token")
    begins = segment_starts(step, length=args.max_completion_length, first=first, last=last)[:count]
    later = [place for place in begins if place > 0][: args.max_valued_steps]
    return [0, *later] if args.initial_value != "group" else later


def _steps(args: CreditConfig, prompts: int | None) -> int | None:
    if args.max_steps > 0:
        return args.max_steps
    if prompts is None:
        return None
    rows = args.per_device_train_batch_size * args.steps_per_generation
    micro = prompts // (rows // args.num_generations) * args.steps_per_generation * args.num_iterations
    return ceil(max(1, ceil(micro / args.gradient_accumulation_steps)) * args.num_train_epochs)
