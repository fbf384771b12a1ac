"""The data sets that are known by name, how a row of each is read, and the prompts of the papers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..rewards import extract_answer
from .cleaning import DAPO_WRAPPER, strip_dapo_wrapper
from .columns import answer_text


@dataclass(frozen=True)
class Split:
    """One split of a set: its name on the Hub, the configuration it is in, and what its file is called besides."""

    hub: str
    config: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A set of problems.

    Args:
        repo, revision (`str`):
            Repository on the Hub and the commit it is pinned to, 40 hexadecimal digits; `None` where none is known.
        splits (`dict[str, Split]`):
            By name; the first is the default.
        read (`Callable`):
            From a row of the Hub or of a file to a dict with `problem`, `answer` and what else the set has.
        licence (`str`):
            Of the data, as far as it is known.
        evaluation (`bool`):
            Whether it is kept whole, and training sets are to be free of it.
        english, distinct, copies (`bool`):
            Cleaning: whether Chinese rows are dropped, whether duplicates and conflicting golds are, and whether the
            Hub holds every row many times.
        mathematical (`bool`):
            Whether the answers are for the `accuracy` reward.
    """

    repo: str
    revision: str | None
    splits: dict[str, Split]
    read: Callable[[dict], dict]
    licence: str
    evaluation: bool = False
    english: bool = False
    distinct: bool = False
    copies: bool = False
    mathematical: bool = True


@dataclass(frozen=True)
class PromptStyle:
    """`template` with `{problem}` in it is the user's message, after the `system` message if there is one.

    `chat=False` is for base models: such a prompt stays plain text even where the tokenizer has a chat template.
    `text:` before a name or a template makes any style one of these.
    """

    template: str = "{problem}"
    system: str | None = None
    chat: bool = True


def read_problem(row: dict) -> dict:
    """`problem`, `question` or `prompt` with an `answer`: most sets, and the files of all."""
    return {"problem": _first(row, "problem", "question", "prompt"), "answer": answer_text(_first(row, "answer"))}


def read_gsm8k(row: dict) -> dict:
    """`answer` may be the solution that ends in `#### 72`."""
    found = read_problem(row)
    return {**found, "answer": (found["answer"] or "").rpartition("####")[2].strip()}


def read_math(row: dict) -> dict:
    """The gold is what the solution boxes, where there is no `answer`; `level` is "Level 5", or "Level ?" twice."""
    answer = row["answer"] if "answer" in row else extract_answer(_first(row, "solution")) or ""
    level = str(row.get("level", "")).removeprefix("Level ")
    return {
        "problem": _first(row, "problem"),
        "answer": answer_text(answer),
        "level": int(level) if level.isdecimal() else None,
    }


def read_olympiadbench(row: dict) -> dict:
    """`final_answer` is a list, with one entry or several."""
    return {
        "problem": _first(row, "problem", "question"),
        "answer": answer_text(_first(row, "final_answer", "answer")),
    }


def read_dapo(row: dict) -> dict:
    """`prompt` is one message with a wrapper around the problem, the gold is in `reward_model`."""
    problem = _first(row, "problem", "prompt")
    if isinstance(problem, list):
        problem = problem[-1]["content"]
    gold = row["reward_model"]["ground_truth"] if "reward_model" in row else _first(row, "answer", "solution")
    return {"problem": strip_dapo_wrapper(problem), "answer": answer_text(gold)}


def read_orz(row: dict) -> dict:
    """A pair of turns: the question, and the assistant's with `ground_truth`. As JSON of lists, columns `0` and `1`."""
    if "0" not in row and "conversations" not in row:
        return read_problem(row)
    question, reply = row["conversations"] if "conversations" in row else (row["0"], row["1"])
    return {"problem": question["value"].strip(), "answer": answer_text(reply["ground_truth"]["value"])}


def read_knights_and_knaves(row: dict) -> dict:
    """`names` and, in `truth`, who is a knight; the answer is the list of "(1) Zoey is a knight"."""
    return {
        "problem": _first(row, "problem", "quiz"),
        "answer": answer_text(_first(row, "answer", "solution_text_format")),
        "names": list(_first(row, "names")),
        "truth": [bool(knight) for knight in _first(row, "truth", "solution")],
    }


def resolve_style(style: str | PromptStyle) -> PromptStyle:
    """A style by its name, or one of a text with `{problem}` in it; behind `text:`, the same without chat template.

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
    """A problem in its style: messages, or their text with an empty line between them. Messages stay as they are."""
    if not isinstance(problem, str):
        return problem
    # not str.format: problems and templates are full of braces
    text = style.template.replace("{problem}", problem)
    if not conversational:
        return text if style.system is None else f"{style.system}\n\n{text}"
    system = [] if style.system is None else [{"role": "system", "content": style.system}]
    return [*system, {"role": "user", "content": text}]


def _first(row: dict, *columns: str) -> object:
    for column in columns:
        if column in row:
            return row[column]
    raise ValueError(f"there is no column {' or '.join(columns)}, but {', '.join(map(str, row))}")


def _test(repo: str, revision: str | None, licence: str, *, hub: str = "test", **settings) -> DataSet:
    settings = {"read": read_problem, **settings}
    return DataSet(repo, revision, {"test": Split(hub)}, licence=licence, evaluation=True, **settings)


# The commits are those that public code pins or has in its caches (docs/data.md says how each was found).
SETS: dict[str, DataSet] = {
    "gsm8k": DataSet(
        "openai/gsm8k",
        "cc7b047b6e5bb11b4f1af84efc572db110a51b3c",
        {"train": Split("train", "main"), "test": Split("test", "main")},
        read_gsm8k,
        licence="MIT",
    ),
    "math": DataSet(
        "DigitalLearningGmbH/MATH-lighteval",
        "0530c78699ea5e8eb5530600900e1f328b48acad",
        {"train": Split("train", "default"), "test": Split("test", "default")},
        read_math,
        licence="MIT",
    ),
    "math12k": DataSet("hiyouga/math12k", None, {"train": Split("train")}, read_problem, licence="not stated"),
    "dapo_math_14k": DataSet(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        {"train": Split("train", files=("dapo_math_17k",))},
        read_dapo,
        licence="Apache-2.0",
        english=True,
        distinct=True,
        copies=True,
    ),
    "orz57k": DataSet(
        "Open-Reasoner-Zero/orz_math_57k_collection",
        None,
        {"train": Split("train", files=("orz_math_57k_collection",))},
        read_orz,
        licence="MIT",
    ),
    "knights_and_knaves_3ppl": DataSet(
        "K-and-K/knights-and-knaves",
        "2f68547989981b1af37cb3dde5fdefa847aa8619",
        {"train": Split("3ppl", "train", ("kk_3ppl_train",)), "test": Split("3ppl", "test", ("kk_3ppl_test",))},
        read_knights_and_knaves,
        licence="MIT",
        mathematical=False,
    ),
    "math500": _test("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "MIT", read=read_math),
    "aime24": _test("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "MAA's", hub="train"),
    "aime25": _test("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "MAA's"),
    # 40 problems in amc23, 83 of two years in amc83: scores on one say nothing about scores on the other
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
