"""Puts the settings of a run and the sizes of a model into the formulas."""

from dataclasses import dataclass, field
from math import ceil, inf

from ...config import CreditConfig
from ...passes.flops import Pass, rows_pass
from . import formulas
from .formulas import Layout, Shape


UNSURE = 0.2  # assumed share of tokens below `probability_threshold`
STEP_TOKENS = 30  # assumed tokens of a step


@dataclass(frozen=True)
class Range:
    """An expected value, and the largest possible one."""

    mean: float
    most: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.mean + other.mean, self.most + other.most)

    def __mul__(self, factor: float) -> "Range":
        return Range(self.mean * factor, self.most * factor)


NOTHING = Range(0, 0)


@dataclass
class Assumed:
    """What a plan needs besides the settings of a run. `None` means unknown.

    Attributes:
        prompt: Mean tokens of a prompt; `None`: half of `longest_prompt`, or 256 if that is unknown too.
        response: Mean tokens of a response; `None`: half of `max_completion_length`.
        segments: Mean segments of a response; `None`: by the settings.
        states: States of a chain to value per response, and `left`, the mean share of a response that is left at them;
            `None`: by the segments.
        prompts: Rows of the data set.
        longest_prompt: `max_prompt_tokens`, if it is set.
        sources: The sources of measured values, by name.
    """

    prompt: float | None = None
    response: float | None = None
    segments: float | None = None
    states: float | None = None
    left: float | None = None
    prompts: int | None = None
    longest_prompt: int | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def source(self, name: str, flag: str) -> str:
        """The source of a value: a measurement, or its flag."""
        return f" as in {self.sources[name]}" if name in self.sources else f" ({flag})"


@dataclass
class Plan:
    """The cost of one generation batch, and how many batches and steps there are.

    Attributes:
        processes: Number of GPUs.
        prompts, responses: Prompts and responses of a generation batch; the leaves of trees are responses.
        generated: Tokens of a generation batch.
        continued: Continuations of a chain, or nodes of all trees.
        is_chain: Whether `continued` are continuations.
        passes: Tokens of the forward passes over a generation batch: "old", "reference", "loss".
        flops: FLOPs of "generation" and of `passes`.
        memory: Bytes per GPU by purpose.
        batches_per_step: Generation batches per optimizer step.
        steps: Optimizer steps of the run, `None` if the number of prompts is unknown.
        notes: Assumptions, one sentence each.
    """

    processes: int
    prompts: float
    responses: Range
    generated: Range
    continued: Range
    is_chain: bool
    passes: dict[str, Range]
    flops: dict[str, float]
    memory: dict[str, float]
    batches_per_step: float
    steps: int | None
    notes: list[str] = field(default_factory=list)

    @property
    def scored(self) -> float:
        """Texts of a generation batch that get a reward."""
        return self.responses.mean + (self.continued.mean if self.is_chain else 0.0)

    @property
    def forward_flops(self) -> float:
        """FLOPs of a generation batch's passes for π_old and the reference."""
        return self.flops.get("old", 0.0) + self.flops.get("reference", 0.0)


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
    notes: list[str] = []
    if args.max_completion_length is None:  # the rest of the context
        args.max_completion_length = (args.use_vllm and args.vllm_max_model_length) or shape.context
        notes.append(f"max_completion_length=None: the rest of a context of {args.max_completion_length:,} tokens")
    if args.groups == "refill":
        limit = f"and at most {1 + args.max_refills} times as much (max_refills)"
        notes.append(f"no refills: if half of the groups have signal, sampling takes twice as much, {limit}")
    rows, most = args.per_device_train_batch_size * args.steps_per_generation, args.max_completion_length
    prompts, count = rows / args.num_generations, rows
    prompt, length = _prompt(assumed, notes), Range(_response(assumed, most, notes), most)
    generated, responses, continued, new, squares = length * rows, Range(rows, rows), NOTHING, NOTHING, 0.0
    trees = []
    if args.rollouts == "tree":
        tree = {"branching": args.tree_branching, "segment": args.tree_segment_length}
        trees = [formulas.tree_size(**tree, length=x) for x in (length.mean, length.most)]
    if args.rollouts == "chain":
        shared = formulas.prompts_on(rows // layout.processes, args.num_generations, layout.processes)
        continued, tokens, prefill = _chain(args, assumed, length.mean, rows, shared, notes)
        generated += tokens
        prefill += (rows + continued.mean / args.rollouts_per_state) * prompt.mean
    elif trees:
        generated, continued, responses = (
            Range(*(prompts * getattr(tree, name) for tree in trees)) for name in ("tokens", "nodes", "leaves")
        )
        prefill = prompts * (prompt.mean * len(args.tree_branching) + trees[0].prefix_tokens)
        count = min(rows, int(continued.mean))
        squares = prompts * trees[0].squares(prompt.mean, rows=count / prompts if args.tree_rows == "packed" else 1)
        if args.replay_iterations > 1 and not args.use_vllm:
            new = prompt * prompts + generated
        notes.append("every path of a tree is as long as a response is on average")
        if count < rows:
            notes.append(f"trees have {count:,} nodes for the {rows:,} rows of a batch: the other rows are empty")
    else:
        prefill = (prompts if args.use_vllm else rows) * prompt.mean
    tokens, scored = _row(args, prompt, length, trees, notes)
    passes, computed = _passes(args, tokens, scored, rows=count, new=new, squares=squares)
    context = prompt.mean + length.mean / 2
    flops = {
        "generation": formulas.generation_flops(shape, tokens=generated.mean, context=context, prefill=prefill),
        **{name: shape.cost.forward(of) for name, of in computed.items()},
    }
    loss = formulas.training_flops(shape, computed["loss"], checkpointing=layout.checkpointing)
    flops["loss"] = args.num_iterations * loss
    longest = args.vllm_max_model_length if args.use_vllm and args.vllm_max_model_length else inf
    size, widest = args.per_device_train_batch_size // layout.processes, int(min(prompt.most + most, longest))
    if formulas.optimizer_states(layout.optimizer) is None:
        notes.append(f"optim={layout.optimizer!r} has AdamW's state")
    if args.use_vllm and args.vllm_mode == "colocate":
        asleep = ", which sleeps while the model trains" if args.vllm_enable_sleep_mode else ""
        notes.append(
            f"memory does not include the colocated vLLM{asleep}: {args.vllm_gpu_memory_utilization:.0%} of each GPU, "
            f"of which {2 * shape.parameters / args.vllm_tensor_parallel_size / 1024**3:.1f} GiB are weights"
        )
    notes.append(f"a micro-batch of {size} rows of {widest:,} tokens (the longest prompt and response) in memory")
    return Plan(
        processes=layout.processes,
        prompts=prompts,
        responses=responses,
        generated=generated,
        continued=continued,
        is_chain=args.rollouts == "chain",
        passes=passes,
        flops=flops,
        memory=formulas.memory(shape, layout, tokens=size * widest, scored=size * most),
        batches_per_step=batches_per_step(args),
        steps=_steps(args, assumed.prompts),
        notes=notes,
    )


def batches_per_step(args: CreditConfig) -> float:
    """Generation batches per optimizer step."""
    return args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)


def _prompt(assumed: Assumed, notes: list[str]) -> Range:
    """Tokens of a prompt."""
    mean, longest = assumed.prompt, assumed.longest_prompt
    if mean is not None:
        most = mean if longest is None else longest
        notes.append(f"prompts of {mean:,.0f} tokens on average{assumed.source('prompt', '--prompt_length')}")
    else:
        most = 512 if longest is None else longest
        mean, why = most / 2, "a guess" if longest is None else "half of max_prompt_tokens"
        notes.append(f"prompts of {mean:,.0f} tokens on average, {why} (--prompt_length)")
    if longest is None:
        notes.append(f"prompts of at most {most:,.0f} tokens; no setting limits them (max_prompt_tokens)")
    return Range(mean, max(most, mean))


def _response(assumed: Assumed, most: int, notes: list[str]) -> float:
    """Mean tokens of a response."""
    if assumed.response is None:
        notes.append(f"responses of {most / 2:,.0f} tokens on average, half of the most (--response_length)")
        return most / 2
    notes.append(
        f"responses of {assumed.response:,.0f} tokens on average{assumed.source('response', '--response_length')}"
    )
    return min(assumed.response, most)


def _chain(
    args: CreditConfig, assumed: Assumed, length: float, rows: int, shared: int, notes: list[str]
) -> tuple[Range, Range, float]:
    """Continuations of a generation batch, their tokens, and the tokens of responses that they continue."""
    at_first = not args.uses_released_code("spo_first_cutpoint")
    begins = _most_begins(args, at_first)
    most = Range(
        sum(shared if b == 0 else rows for b in begins),
        formulas.most_rollout_tokens(begins, length=args.max_completion_length, rows=rows, starts=shared),
    )
    if assumed.states is not None:
        states, left = rows * assumed.states, assumed.left
        there = f"{left:.0%} of it left there{assumed.source('states', '--rates_from')}"
        notes.append(f"{assumed.states:.2f} states to value per response, {there}")
    else:
        first = at_first and args.initial_value != "group"
        segments = _segments(args, assumed, length, notes) - (at_first and not first)
        if args.max_valued_steps is not None:
            segments = min(segments, args.max_valued_steps + first)
        states, left = formulas.mean_states(segments, rows=rows, starts=shared, at_first=first)
        notes.append("equal prefixes at the first token only; half of a response left at the others")
    n = args.rollouts_per_state
    return (
        Range(n * states, n * most.mean),
        Range(n * states * left * length, n * most.most),
        states * (1 - left) * length,
    )


def _segments(args: CreditConfig, assumed: Assumed, length: float, notes: list[str]) -> float:
    """Mean segments of a response."""
    if assumed.segments is not None:
        notes.append(f"{assumed.segments:.1f} segments of a response{assumed.source('segments', '--segments')}")
        return assumed.segments
    if args.segmentation == "fixed_length":
        return max(1.0, length / args.segment_length)
    if args.segmentation in ("fixed_count", "cutpoints") and args.num_segments is not None:
        return min(args.num_segments, length)
    if args.segmentation == "cutpoints":
        found = 1 + UNSURE * length / args.cutpoint_interval
        why = f"{UNSURE:.0%} of tokens less sure than {args.probability_threshold}"
    else:
        found, why = max(1.0, length / STEP_TOKENS), f"steps of {STEP_TOKENS} tokens"
    notes.append(f"{why}: {found:.1f} segments (--segments)")
    return found


def _most_begins(args: CreditConfig, at_first: bool) -> list[int]:
    """The valued places of the response that costs most."""
    cutpoints, step, count = args.segmentation == "cutpoints", 1, None
    if args.segmentation == "fixed_length":
        step = args.segment_length
    elif cutpoints and args.num_segments is None:
        step = args.cutpoint_interval
    elif cutpoints or args.segmentation == "fixed_count":  # most is left to write if all segments begin early
        count = args.num_segments
    first = int(not at_first)  # where a first cutpoint costs most: the state before the first token is shared
    last = args.uses_released_code("spo_last_token")
    begins = formulas.every(step, length=args.max_completion_length, first=first, last=last)[:count]
    later = [b for b in begins if b > 0][: args.max_valued_steps]
    return [0, *later] if args.initial_value != "group" else later


def _row(
    args: CreditConfig, prompt: Range, length: Range, trees: list[formulas.TreeSize], notes: list[str]
) -> tuple[Range, Range]:
    """Tokens of a row of training, and of its part after the prompt."""
    if not trees or args.tree_rows == "paths":
        return prompt + length, length
    if args.tree_rows == "nodes":
        notes.append("all nodes of a tree are equally likely to be rows")
        nodes = max(trees[0].nodes, 1)
        return prompt + Range(trees[0].path_tokens / nodes, length.most), Range(trees[0].tokens / nodes, length.most)
    rows = args.num_generations
    notes.append(f"the nodes of a tree packed into {rows} rows of equal length; every node has an advantage")
    # a branch repeats the token before it, and a row repeats the path that it continues
    path = args.tree_segment_length * (len(args.tree_branching) - 1)
    packed = Range(*((tree.tokens + tree.nodes) / rows + path for tree in trees))
    return prompt + packed, packed


def _passes(
    args: CreditConfig, tokens: Range, scored: Range, *, rows: int, new: Range, squares: float
) -> tuple[dict[str, Range], dict[str, Pass]]:
    """Tokens of the forward passes over a generation batch, and the passes with their mean tokens.

    `new` are the tokens of packed passes over trees whose rows are kept for later batches, and `squares` the pairs of
    tokens in attention over all trees if packed.
    """
    whole = rows_pass(rows, length=tokens.mean, scored=scored.mean)
    if args.rollouts == "tree" and args.tree_rows == "packed":
        whole = whole._replace(squares=squares)
    of_rows = tokens * rows
    found, computed = {}, {}
    if needs_old(args) or new.most:
        found["old"] = of_rows * needs_old(args) + new
        packed = Pass(new.mean, squares if new.most else 0.0, new.mean)
        computed["old"] = Pass(*(a * needs_old(args) + b for a, b in zip(whole, packed, strict=True)))
    if args.beta != 0.0:
        found["reference"], computed["reference"] = of_rows, whole
    found["loss"], computed["loss"] = of_rows * args.num_iterations, whole
    return found, computed


def needs_old(args: CreditConfig) -> bool:
    """Whether there is a forward pass for π_old over the rows of a generation batch."""
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    if args.behavior_logps == "sampler" and (corrected or not args.is_aligned):
        return False
    return not args.is_aligned or corrected or args.rollouts == "chain"


def _steps(args: CreditConfig, prompts: int | None) -> int | None:
    if args.max_steps > 0:
        return args.max_steps
    if prompts is None:
        return None
    rows = args.per_device_train_batch_size * args.steps_per_generation
    batches = prompts // (rows // args.num_generations)
    micro = batches * args.steps_per_generation * args.num_iterations
    return ceil(max(1, ceil(micro / args.gradient_accumulation_steps)) * args.num_train_epochs)
