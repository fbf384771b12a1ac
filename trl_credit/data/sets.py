"""The data sets that are known by name, how a row of each is read, and the prompts of the papers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..rewards import extract_answer
from .cleaning import DAPO_WRAPPER, strip_dapo_wrapper
from .readers import answer_text


@dataclass(frozen=True)
class Split:
    """One split of a set: its name on the Hub, its configuration, and further names that its file may have."""

    hub: str
    config: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A set of problems.

    Args:
        repo, revision (`str`):
            Repository on the Hub and the commit it is pinned to, 40 hexadecimal digits; `None` if none is known.
        read (`Callable`):
            Maps a row of the Hub or of a file to a dict with `problem`, `answer` and what else the set has.
        licence (`str`):
            Licence of the data, as far as it is known.
        splits (`dict[str, Split]`):
            Splits by name; the first is the default.
        evaluation (`bool`):
            Whether the set is kept whole, and training sets are to be free of it.
        english, distinct, copies (`bool`):
            Cleaning: whether Chinese rows are dropped, whether duplicates and conflicting golds are dropped, and
            whether the Hub holds every row many times.
        mathematical (`bool`):
            Whether the answers are for the `accuracy` reward.
    """

    repo: str
    revision: str | None
    read: Callable[[dict], dict]
    licence: str
    splits: dict[str, Split]
    evaluation: bool = False
    english: bool = False
    distinct: bool = False
    copies: bool = False
    mathematical: bool = True


@dataclass(frozen=True)
class PromptStyle:
    """`template`, which contains `{problem}`, is the user's message. It follows the `system` message if there is one.

    `chat=False` is for base models: the prompt stays plain text even if the tokenizer has a chat template. `text:`
    before a name or a template makes any style such a style.
    """

    template: str = "{problem}"
    system: str | None = None
    chat: bool = True


def read_problem(row: dict) -> dict:
    """Reads `problem`, `question` or `prompt` with an `answer`: most sets, and the files of all."""
    return _problem(_first(row, "problem", "question", "prompt"), _first(row, "answer"))


def read_gsm8k(row: dict) -> dict:
    """`answer` may be the solution that ends in `#### 72`."""
    found = read_problem(row)
    return {**found, "answer": (found["answer"] or "").rpartition("####")[2].strip()}


def read_math(row: dict) -> dict:
    """Without an `answer`, the gold is what the solution boxes. `level` is "Level 5", or "Level ?" in two rows."""
    answer = row["answer"] if "answer" in row else extract_answer(_first(row, "solution")) or ""
    level = str(row.get("level", "")).removeprefix("Level ")
    return _problem(_first(row, "problem"), answer, level=int(level) if level.isdecimal() else None)


def read_olympiadbench(row: dict) -> dict:
    """`final_answer` is a list, with one entry or several."""
    return _problem(_first(row, "problem", "question"), _first(row, "final_answer", "answer"))


def read_dapo(row: dict) -> dict:
    """`prompt` is one message with a wrapper around the problem, the gold is in `reward_model`."""
    problem = _first(row, "problem", "prompt")
    if isinstance(problem, list):
        problem = problem[-1]["content"]
    gold = row["reward_model"]["ground_truth"] if "reward_model" in row else _first(row, "answer", "solution")
    return _problem(strip_dapo_wrapper(problem), gold)


def read_orz(row: dict) -> dict:
    """A pair of turns: the question, and the assistant's with `ground_truth`. As JSON of lists, columns `0` and `1`."""
    if "0" not in row and "conversations" not in row:
        return read_problem(row)
    question, reply = row["conversations"] if "conversations" in row else (row["0"], row["1"])
    return _problem(question["value"].strip(), reply["ground_truth"]["value"])


def read_knights_and_knaves(row: dict) -> dict:
    """`names`, and who is a knight in `truth`; the answer is the list of "(1) Zoey is a knight"."""
    answer = _first(row, "answer", "solution_text_format")
    truth = [bool(knight) for knight in _first(row, "truth", "solution")]
    return _problem(_first(row, "problem", "quiz"), answer, names=list(_first(row, "names")), truth=truth)


def resolve_style(style: str | PromptStyle) -> PromptStyle:
    """A style by its name, or by a text with `{problem}` in it; after `text:`, the same without chat template.

    Raises:
        ValueError: no style has that name.
    """
    if isinstance(style, PromptStyle):
        return style
    if style in PROMPT_STYLES:
        return PROMPT_STYLES[style]
    if style.startswith(_AS_TEXT):
        return replace(resolve_style(style.removeprefix(_AS_TEXT)), chat=False)
    if "{problem}" in style:
        return PromptStyle(style)
    known = ", ".join(PROMPT_STYLES)
    raise ValueError(f"unknown --prompt_style {style!r}: choose one of {known}, or give a text with {{problem}} in it")


def to_prompt(problem: str | list[dict], style: PromptStyle, *, conversational: bool) -> str | list[dict]:
    """A problem in its style: messages, or their text with an empty line between them. Messages do not change."""
    if not isinstance(problem, str):
        return problem
    # not str.format, since problems and templates are full of braces
    text = style.template.replace("{problem}", problem)
    if not conversational:
        return text if style.system is None else f"{style.system}\n\n{text}"
    system = [] if style.system is None else [{"role": "system", "content": style.system}]
    return [*system, {"role": "user", "content": text}]


def _problem(problem: object, answer: object, **others: object) -> dict:
    return {"problem": problem, "answer": answer_text(answer), **others}


def _first(row: dict, *columns: str) -> object:
    for column in columns:
        if column in row:
            return row[column]
    raise ValueError(f"there is no column {' or '.join(columns)}, but {', '.join(map(str, row))}")


def _test(
    repo: str, revision: str | None, licence: str, *, hub: str = "test", read: Callable = read_problem
) -> DataSet:
    return DataSet(repo, revision, read, licence, {"test": Split(hub)}, evaluation=True)


_GSM8K = {"train": Split("train", "main"), "test": Split("test", "main")}
_MATH = {"train": Split("train", "default"), "test": Split("test", "default")}
_DAPO = {"train": Split("train", files=("dapo_math_17k",))}
_ORZ = {"train": Split("train", files=("orz_math_57k_collection",))}
_KNIGHTS = {"train": Split("3ppl", "train", ("kk_3ppl_train",)), "test": Split("3ppl", "test", ("kk_3ppl_test",))}
# The commits are those that public code pins or has in its caches (docs/data.md says how each was found).
SETS: dict[str, DataSet] = {
    "gsm8k": DataSet("openai/gsm8k", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c", read_gsm8k, "MIT", _GSM8K),
    "math": DataSet(
        "DigitalLearningGmbH/MATH-lighteval", "0530c78699ea5e8eb5530600900e1f328b48acad", read_math, "MIT", _MATH
    ),
    "math12k": DataSet("hiyouga/math12k", None, read_problem, "not stated", {"train": Split("train")}),
    "dapo_math_14k": DataSet(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        read_dapo,
        "Apache-2.0",
        _DAPO,
        english=True,
        distinct=True,
        copies=True,
    ),
    "orz57k": DataSet("Open-Reasoner-Zero/orz_math_57k_collection", None, read_orz, "MIT", _ORZ),
    "knights_and_knaves_3ppl": DataSet(
        "K-and-K/knights-and-knaves",
        "2f68547989981b1af37cb3dde5fdefa847aa8619",
        read_knights_and_knaves,
        "MIT",
        _KNIGHTS,
        mathematical=False,
    ),
    "math500": _test("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "MIT", read=read_math),
    "aime24": _test("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "MAA's", hub="train"),
    "aime25": _test("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "MAA's"),
    # 40 problems in amc23, 83 of two years in amc83: a score on one cannot be compared with a score on the other
    "amc23": _test("math-ai/amc23", None, "MAA's"),
    "amc83": _test("AI-MO/aimo-validation-amc", None, "MAA's", hub="train"),
    "minerva": _test("math-ai/minervamath", None, "not stated"),
    "olympiadbench": _test("math-ai/olympiadbench", None, "MIT", read=read_olympiadbench),
    "beyond_aime": _test("ByteDance-Seed/BeyondAIME", None, "not checked"),
}

_R1 = (
    "The assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
    "The reasoning process and answer are enclosed within <think> </think> and{}<answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think><answer> answer here </answer>"
)

_AS_TEXT = "text:"
# Quoted word for word: a prompt is a fact of an experiment. docs/data.md says which papers give theirs.
PROMPT_STYLES: dict[str, PromptStyle] = {
    "boxed": PromptStyle("{problem}\nReason step by step, and put your final answer within \\boxed{}."),
    "plain": PromptStyle(),
    "text": PromptStyle(chat=False),
    # veRL's preprocessing of MATH and of GSM8K
    "verl": PromptStyle("{problem} Let's think step by step and output the final answer within \\boxed{}."),
    "verl_gsm8k": PromptStyle('{problem} Let\'s think step by step and output the final answer after "####".'),
    # model card of Qwen2.5-Math
    "qwen_math": PromptStyle(system="Please reason step by step, and put your final answer within \\boxed{}."),
    # open-r1: the first version of its GRPO script (the template of DeepSeek-R1), and its later recipes
    "open_r1": PromptStyle(
        system="A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
        + _R1.format(" ")
    ),
    "open_r1_recipes": PromptStyle(
        system="You are a helpful AI Assistant that provides well-reasoned and detailed responses. You first think "
        "about the reasoning process as an internal monologue and then provide the user with the answer. Respond in "
        "the following format: <think>\n...\n</think>\n<answer>\n...\n</answer>"
    ),
    # VinePPO and SPO, for the models that they fine-tuned on it (Rho-1B, DeepSeekMath-7B)
    "math_task": PromptStyle("[MATH_TASK] Problem:\n{problem}\n\nSolution:", chat=False),
    # SPO, DeepSeek-R1-Distill-Qwen-1.5B on MATH; the two spaces are its own
    "spo_r1_distill": PromptStyle(
        "Solve the following math problem efficiently and clearly.  The last line of your response should be of the "
        "following format: 'Therefore, the final answer is: $\\boxed{ANSWER}$. I hope it is correct' (without quotes) "
        "where ANSWER is just the final number or expression that solves the problem. Think step by step before "
        "answering.\n\n{problem}"
    ),
    "dapo": PromptStyle("{problem}".join(DAPO_WRAPPER)),
    # Logic-RL's for instruct models; the missing space before <answer> is its own
    "logic_rl": PromptStyle(
        system="You are a helpful assistant. "
        + _R1.format("")
        + ".  Now the user asks you to solve a logical reasoning problem. After thinking, when you finally reach a "
        "conclusion, clearly state the identity of each character within <answer> </answer> tags. i.e., <answer> "
        "(1) Zoey is a knight\n(2) ... </answer>."
    ),
}
