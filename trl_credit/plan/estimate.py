"""A run's settings and a model's shape, put into the formulas."""

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from ..config import CreditConfig
from ..flops import Pass, rows_pass
from . import formulas
from .formulas import Layout, Shape


UNSURE = 0.2  # share of tokens below `probability_threshold`, where nothing is known
STEP_TOKENS = 30  # of a step, where nothing is known


class Range(NamedTuple):
    """A number as it is expected, and at most."""

    mean: float
    most: float

    def times(self, x: float) -> "Range":
        return Range(self.mean * x, self.most * x)


@dataclass
class Assumed:
    """What a plan takes from outside of a run's settings.

    Attributes:
        prompt: Tokens of a prompt on average; `None`: half of the longest that the settings let in.
        response: Tokens of a response on average; `None`: half of `max_completion_length`.
        segments: Segments of a response on average; `None`: by the settings.
        states: States of a chain to be valued, per response, and `left`, the share of a response that is left at them;
            `None`: by the segments.
        prompts: Rows of the data set; `None`: not known.
        longest_prompt: `max_prompt_tokens`, if it is set.
        sources: Where those of them that were measured come from, by name.
    """

    prompt: float | None = None
    response: float | None = None
    segments: float | None = None
    states: float | None = None
    left: float | None = None
    prompts: int | None = None
    longest_prompt: int | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def whence(self, name: str, flag: str) -> str:
        """Where a number comes from, in words."""
        return f" as in {self.sources[name]}" if name in self.sources else f" ({flag})"


@dataclass
class Plan:
    """What one generation batch costs, and how many there are.

    Attributes:
        prompts, responses: Of a generation batch; the leaves of trees are responses.
        rows: Rows that are trained on.
        prompt, response: Tokens on average.
        generated: Tokens of a generation batch.
        continued: Continuations of a chain, or nodes of all trees.
        passes: Tokens that go forward in a generation batch: "old", "reference", "loss".
        flops: "generation", and those of `passes`.
        memory: Bytes per GPU.
        batches_per_step: Generation batches per optimizer step.
        steps: Optimizer steps of the run, `None` where the number of prompts is not known.
        notes: What is assumed, a sentence each.
    """

    processes: int
    prompts: float
    responses: Range
    rows: int
    prompt: float
    response: float
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
        """Of a generation batch's passes for π_old and the reference."""
        return self.flops.get("old", 0.0) + self.flops.get("reference", 0.0)


def make_plan(args: CreditConfig, shape: Shape, layout: Layout, assumed: Assumed) -> Plan:
    """The plan of a run.

    Args:
        args ([`CreditConfig`]):
            Built as if one process had the rows of all: `per_device_train_batch_size` is that of `layout.processes`.
        shape ([`~trl_credit.plan.formulas.Shape`]):
            Of the model.
        layout ([`~trl_credit.plan.formulas.Layout`]):
            Of the GPUs.
        assumed ([`Assumed`]):
            What the settings do not say.
    """
    notes: list[str] = []
    rows, group = args.per_device_train_batch_size * args.steps_per_generation, args.num_generations
    most = args.max_completion_length
    prompt, longest = _prompt(assumed, notes)
    length = _response(assumed, most, notes)
    prompts = rows / group
    shared = formulas.prompts_on(rows // layout.processes, group, layout.processes)
    sampled = Range(rows * length, rows * most)
    count, new, squares = rows, Range(0, 0), 0.0
    if args.rollouts == "chain":
        continuations, tokens, prefill = _chain(args, assumed, length, rows, shared, notes)
        generated = Range(sampled.mean + tokens.mean, sampled.most + tokens.most)
        prefill += rows * prompt + continuations.mean * prompt / args.rollouts_per_state
        responses = Range(rows, rows)
    elif args.rollouts == "tree":
        sizes = [_tree(args, x) for x in (length, most)]
        generated = Range(*(prompts * size.tokens for size in sizes))
        continuations = Range(*(prompts * size.nodes for size in sizes))
        responses = Range(*(prompts * size.leaves for size in sizes))
        prefill = prompts * (prompt * len(args.tree_branching) + sizes[0].prefix_tokens)
        count = min(rows, int(continuations.mean))
        packed = count / prompts if args.tree_rows == "packed" else 1
        squares = prompts * sizes[0].squares(prompt, rows=packed)
        if args.replay_iterations > 1 and not args.use_vllm:
            new = Range(*(prompts * (x + size.tokens) for x, size in zip((prompt, longest), sizes, strict=True)))
        notes.append("every path of a tree is as long as a response is on average")
        if count < rows:
            notes.append(f"trees have {count:,} nodes for the {rows:,} rows of a batch: the rest is empty")
    else:
        continuations, generated, responses = Range(0, 0), sampled, Range(rows, rows)
        prefill = (prompts if args.use_vllm else rows) * prompt
    one = _one_row(args, prompt, longest, length, notes)
    passes, passing = _passes(args, one, rows=count, new=new, squares=squares)
    model = {name: formulas.forward_flops(shape, of) for name, of in passing.items() if name != "loss"}
    loss = args.num_iterations * formulas.training_flops(shape, passing["loss"], checkpointing=layout.checkpointing)
    context = prompt + length / 2
    flops = {
        "generation": formulas.generation_flops(shape, tokens=generated.mean, context=context, prefill=prefill),
        **model,
        "loss": loss,
    }
    size = args.per_device_train_batch_size // layout.processes
    widest = int(longest + most)
    if layout.optimizer and not formulas.knows_optimizer(layout.optimizer):
        notes.append(f"optim={layout.optimizer!r} has AdamW's state")
    if args.use_vllm and args.vllm_mode == "colocate":
        asleep = ", which sleeps while the model trains" if args.vllm_enable_sleep_mode else ""
        notes.append(
            f"without the colocated vLLM{asleep}: {args.vllm_gpu_memory_utilization:.0%} of each GPU, of which "
            f"{2 * shape.parameters / args.vllm_tensor_parallel_size / 1024**3:.1f} GiB are weights"
        )
    notes.append(f"a micro-batch of {size} rows of {widest:,} tokens (the longest prompt and response) in memory")
    return Plan(
        processes=layout.processes,
        prompts=prompts,
        responses=responses,
        rows=count,
        prompt=prompt,
        response=length,
        generated=generated,
        continued=continuations,
        is_chain=args.rollouts == "chain",
        passes=passes,
        flops=flops,
        memory=formulas.memory(shape, layout, tokens=size * widest, scored=size * most),
        batches_per_step=args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations),
        steps=_steps(args, assumed.prompts),
        notes=notes,
    )


def _prompt(assumed: Assumed, notes: list[str]) -> tuple[float, float]:
    """Tokens of a prompt on average, and of the longest."""
    longest = assumed.longest_prompt
    if assumed.prompt is not None:
        notes.append(f"prompts of {assumed.prompt:,.0f} tokens on average{assumed.whence('prompt', '--prompt_length')}")
        most = assumed.prompt if longest is None else longest
    else:
        most = 512 if longest is None else longest
        why = "half of max_prompt_tokens" if longest is not None else "a guess"
        notes.append(f"prompts of {most / 2:,.0f} tokens on average, {why} (--prompt_length)")
    if longest is None:
        notes.append(f"no prompt of more than {most:,.0f} tokens, which no setting limits (max_prompt_tokens)")
    return assumed.prompt if assumed.prompt is not None else most / 2, max(most, assumed.prompt or 0)


def _response(assumed: Assumed, most: int, notes: list[str]) -> float:
    if assumed.response is None:
        notes.append(f"responses of {most / 2:,.0f} tokens on average, half of the most (--response_length)")
        return most / 2
    where = assumed.whence("response", "--response_length")
    notes.append(f"responses of {assumed.response:,.0f} tokens on average{where}")
    return min(assumed.response, most)


def _chain(
    args: CreditConfig, assumed: Assumed, length: float, rows: int, shared: int, notes: list[str]
) -> tuple[Range, Range, float]:
    """Continuations of a generation batch, their tokens, and tokens of responses that they are given to go on from."""
    n, at_first = args.rollouts_per_state, args.segmentation != "cutpoints" or args.token_mask != "probability"
    if assumed.states is not None:
        states, left = rows * assumed.states, assumed.left
        where = assumed.whence("states", "")
        notes.append(f"{assumed.states:.2f} states to value per response, {left:.0%} of it left there{where}")
    else:
        first = at_first and args.initial_value != "group"
        segments = _segments(args, assumed, length, notes) - (at_first and not first)
        if args.max_valued_steps is not None:
            segments = min(segments, args.max_valued_steps + first)
        states, left = formulas.mean_states(segments, rows=rows, starts=shared, at_first=first)
        notes.append("equal prefixes at the first token alone; half of a response left at the others")
    begins = _valued(args, _most_begins(args, at_first))
    most = sum(shared if b == 0 else rows for b in begins)
    most_tokens = formulas.most_rollout_tokens(begins, length=args.max_completion_length, rows=rows, starts=shared)
    return Range(n * states, n * most), Range(n * states * left * length, n * most_tokens), states * (1 - left) * length


def _valued(args: CreditConfig, begins: list) -> list:
    begins = [b for b in begins if b > 0 or args.initial_value != "group"]
    if args.max_valued_steps is None:
        return begins
    later = [b for b in begins if b > 0][: args.max_valued_steps]
    return [b for b in begins if b == 0] + later


def _segments(args: CreditConfig, assumed: Assumed, length: float, notes: list[str]) -> float:
    """Segments of a response on average."""
    if assumed.segments is not None:
        notes.append(f"{assumed.segments:.1f} segments of a response{assumed.whence('segments', '--segments')}")
        return assumed.segments
    if args.segmentation == "fixed_length":
        return max(1.0, length / args.segment_length)
    if args.segmentation == "fixed_count" or (args.segmentation == "cutpoints" and args.num_segments is not None):
        return min(args.num_segments, length)
    if args.segmentation == "cutpoints":
        found = 1 + UNSURE * length / args.cutpoint_interval
        notes.append(
            f"{UNSURE:.0%} of tokens less sure than {args.probability_threshold}: {found:.1f} segments (--segments)"
        )
        return found
    notes.append(f"steps of {STEP_TOKENS} tokens: {max(1.0, length / STEP_TOKENS):.1f} segments (--segments)")
    return max(1.0, length / STEP_TOKENS)


def _most_begins(args: CreditConfig, first: bool) -> list[int]:
    """The places that cost most, of all responses that there may be."""
    most, last = args.max_completion_length, args.include_last
    if args.segmentation == "fixed_length":
        return formulas.every(args.segment_length, length=most, last=last)
    if args.segmentation == "fixed_count":  # a short response has its segments early, with most left to write
        return formulas.every(1, length=most, last=last)[: args.num_segments]
    if args.segmentation == "cutpoints":
        step = args.cutpoint_interval if args.num_segments is None else 1
        found = formulas.every(step, length=most, first=int(first), last=last)
        found = found if args.num_segments is None else found[: args.num_segments]
        return ([0] if first else []) + found
    return formulas.every(1, length=most, last=last)


def _tree(args: CreditConfig, length: float) -> formulas.TreeSize:
    return formulas.tree_size(args.tree_branching, segment=args.tree_segment_length, length=length)


class _Row(NamedTuple):
    """A row that is trained on: tokens, and those behind its prompt."""

    tokens: Range
    scored: Range


def _one_row(args: CreditConfig, prompt: float, longest: float, length: float, notes: list[str]) -> _Row:
    most = args.max_completion_length
    if args.rollouts != "tree" or args.tree_rows == "paths":
        return _Row(Range(prompt + length, longest + most), Range(length, most))
    mean, largest = _tree(args, length), _tree(args, most)
    if args.tree_rows == "nodes":
        notes.append("rows of trees are as likely to be of one node as of another")
        whole = prompt + mean.path_tokens / max(mean.nodes, 1)
        return _Row(Range(whole, longest + most), Range(mean.tokens / max(mean.nodes, 1), most))
    rows = args.num_generations
    notes.append(f"the nodes of a tree packed into {rows} rows of equal length, with an advantage each")
    # a branch repeats the token before it, and a row the path that it goes on from
    packed = [
        (size.tokens + size.nodes) / rows + args.tree_segment_length * (len(args.tree_branching) - 1)
        for size in (mean, largest)
    ]
    return _Row(Range(prompt + packed[0], longest + packed[1]), Range(*packed))


def _passes(
    args: CreditConfig, one: _Row, *, rows: int, new: Range, squares: float
) -> tuple[dict[str, Range], dict[str, Pass]]:
    """Tokens that go forward in a generation batch, and what they cost. `new` are those of packed passes over trees
    whose rows are kept for later batches, and `squares` the pairs of tokens in attention over all trees, packed."""
    whole = rows_pass(rows, length=one.tokens.mean, scored=one.scored.mean)
    if args.rollouts == "tree" and args.tree_rows == "packed":
        whole = whole._replace(squares=squares)
    tokens, passes = {}, {}
    if needs_old(args) or new.most:
        times = rows * needs_old(args)
        tokens["old"] = Range(times * one.tokens.mean + new.mean, times * one.tokens.most + new.most)
        packed = Pass(new.mean, squares if new.most else 0.0, new.mean)
        passes["old"] = Pass(*(a * needs_old(args) + b for a, b in zip(whole, packed, strict=True)))
    if args.beta != 0.0:
        tokens["reference"], passes["reference"] = one.tokens.times(rows), whole
    tokens["loss"], passes["loss"] = one.tokens.times(rows * args.num_iterations), whole
    return tokens, passes


def needs_old(args: CreditConfig) -> bool:
    """Whether there is a pass for π_old over the rows of a generation batch."""
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
