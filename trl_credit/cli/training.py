"""A training run from a command line, and its steps in order. `examples/train.py` shows the same steps in one piece."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import Dataset
from transformers import AutoTokenizer
from trl import get_peft_config, get_quantization_config

from ..config.knobs import is_default
from ..config.trl_settings import check_model
from ..data.prompt_sets import hub_source, load_from_arguments, warn_of_unknown_tokens
from ..demo import TASKS, demo_dataset, task_of_model
from ..hub import PushCallback, PushError, PushInterrupted, TrainingData, without_waiting
from ..lab.comparison.processes import ProgressLines
from ..lab.evaluation import PROTOCOLS, EvaluationCallback, forget_after
from ..lab.viewer.trackers import CreditPageCallback, has_tracker
from ..rewards import accuracy_reward, check_answers, resolve_reward
from ..rewards.functions import default_reward
from ..rewards.signature import required_parameters
from ..runs.checkpoints import checkpoint_step, find_last, is_complete, last_checkpoint
from ..runs.resumable import check_amount
from ..settings.arguments import DEMO, Choices, parse_arguments, with_source
from ..support.adapters import tokenizer_source
from ..support.errors import check_data_dir, check_output_dir, fail
from ..support.files import inside, short_path
from ..support.shown import safe_console
from ..support.signals import StopSignals, is_main
from ..support.startup import prepare_process
from ..trainer import CreditTrainer
from ..trainer.named import ALGORITHMS
from .graceful_exit import GracefulExit


def train(argv: list[str], *, command: list[str], **program: str) -> None:
    """Trains as a command line says, then saves and pushes the results.

    Args:
        argv (`list[str]`):
            The flags.
        command (`list[str]`):
            The words before the flags, for messages and the card.
        program (`str`):
            `prog` and `epilog` of `--help`.

    Raises:
        SystemExit: the run did not get to its end, see [`GracefulExit`].
    """
    prepare_process()
    with StopSignals(command) as stop:
        with errors_in_one_line(argv, stop):
            trainer, pusher = build(argv, command=command, **program)
        with without_waiting(pusher), GracefulExit(trainer, stop=stop, argv=argv) as run:
            trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or None)
            save_results(run)
        push_results(trainer, pusher, stop)


def build(argv: list[str], *, command: list[str], **program: str) -> tuple[CreditTrainer, PushCallback | None]:
    """The trainer of a command line. Finds every error in the input before the first step.

    Raises:
        ValueError, OSError, ImportError, RuntimeError, PushError: an error in the input.
    """
    choices = parse_arguments(argv, protocols=PROTOCOLS, **program)
    check_start(choices)
    rewards = make_rewards(choices)
    data = make_data(choices, rewards)
    pusher = PushCallback.from_arguments(choices.args)  # before the trainer, which would push by itself
    trainer = make_trainer(choices, rewards, data, command=command)
    add_callbacks(trainer, choices, pusher)
    claim_folder(trainer)
    return trainer, pusher


@contextmanager
def errors_in_one_line(argv: list[str], stop: StopSignals) -> Iterator[None]:
    """Context manager in which a run is built. An error in the input becomes one line, which names settings as the user
    wrote them, and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError, PushError) as error:
        fail(with_source(error, argv), code=2)
    except KeyboardInterrupt:
        print(f"\ninterrupted before the first step ({stop.cause}): nothing was trained", file=sys.stderr)
        raise SystemExit(stop.code) from None


def check_start(choices: Choices) -> None:
    """Checks the run's folder and its model, and finds the checkpoint to resume from.

    Raises:
        ValueError: the folder cannot be written to, or there is no such checkpoint or model.
        ImportError: the data set needs tools, and transformers is too old for them.
    """
    args, model = choices.args, choices.model.model_name_or_path
    if is_main():  # other nodes may not see the folder
        check_output_dir(short_path(args.output_dir))
    check_data_dir(choices.data.data_dir)  # before the Hub is asked for a model
    if resume := args.resume_from_checkpoint:
        if str(resume).lower() == "true":  # the last one
            resume = find_last(args.output_dir)
        if not is_complete(resume):
            raise ValueError(f"there is no checkpoint in {str(resume)!r}: check --resume_from_checkpoint")
        args.resume_from_checkpoint = resume
    if task_of_model(model) is None and choices.data.dataset_name is None:
        raise ValueError(f"model_name_or_path={model!r} has no data to train on: set --dataset_name")
    check_model(model, revision=choices.model.model_revision, trust_remote_code=args.trust_remote_code)


def make_rewards(choices: Choices) -> list[Callable]:
    """The reward functions of `--reward`, or the default of the data set. Raises what [`resolve_reward`] does."""
    limit = choices.args.max_completion_length
    if limit is None and "soft_overlong" in reward_names(choices):
        raise ValueError("--reward soft_overlong has --max_completion_length as its limit: set a number of tokens")
    return [resolve_reward(name, max_completion_length=limit) for name in reward_names(choices)]


def reward_names(choices: Choices) -> list[str]:
    """The names of `--reward`, or that of the data set's default."""
    return choices.script.reward or [default_reward(choices.data.dataset_name or DEMO)]


def make_data(choices: Choices, rewards: list[Callable]) -> Dataset:
    """The prompts, with the columns that the rewards need.

    Raises:
        ValueError: there is no such data set or model, no reward can read the answers, or the rows are too few for one
            step.
    """
    model, dataset, args = choices.model.model_name_or_path, choices.data.dataset_name or DEMO, choices.args
    if dataset in TASKS:
        data = demo_dataset(seed=args.seed, task=TASKS[dataset])
    else:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_source(model), trust_remote_code=args.trust_remote_code)
        needs_answers = any("answer" in required_parameters(reward) for reward in rewards)
        data = load_from_arguments(choices.data, tokenizer=tokenizer, seed=args.seed, needs_answers=needs_answers)
        warn_of_unknown_tokens(data["prompt"][:20], tokenizer)
        if accuracy_reward in rewards:
            if "answer" not in data.column_names:
                raise ValueError(f"{dataset!r} has no answers for the reward: set --answer_column, or another --reward")
            check_answers(data["answer"])
    check_amount(args, data)
    return data


def make_trainer(choices: Choices, rewards: list[Callable], data: Dataset, *, command: list[str]) -> CreditTrainer:
    """The trainer of `--algo`. Its card will show the settings and the command of the run."""
    script, data_args, args, model_args, files = choices
    model = model_args.model_name_or_path
    names = {"revision": "model_revision", "attn_implementation": "attn_implementation", "dtype": "dtype"}
    if task_of_model(model):  # only what was set, as its card says nothing of the rest
        names = {key: name for key, name in names.items() if not is_default(model_args, name)}
    chosen = {key: getattr(model_args, name) for key, name in names.items()}
    args.model_init_kwargs = {**(args.model_init_kwargs or {}), **chosen} or None
    task = TASKS.get(data_args.dataset_name)
    environment = None if task is None or task.environment is None else task.environment(args)
    trainer = ALGORITHMS[script.algo][1](
        model=model,
        reward_funcs=rewards,
        args=args,
        train_dataset=data,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
        environment_factory=environment,
    )
    repo, revision = hub_source(data_args)
    trainer.task = task_of(choices)
    trainer.results.card = {
        "data": TrainingData(data_args.dataset_name or DEMO, len(data), repo, revision, data.info.description or None),
        "choices": (script, data_args, model_args),
        "recipe": {"algo": script.algo} | ({"env": files["env"]} if files.get("env") else {}),
        "command": command,
    }
    return trainer


def task_of(choices: Choices) -> dict[str, Any]:
    """What a run trains on: the flags of the data that are set, and the rewards. Paths are absolute."""
    data = choices.data
    task = {f.name: getattr(data, f.name) for f in fields(data) if not is_default(data, f.name)}
    task["dataset_name"] = data.dataset_name or DEMO
    paths = [name for name in ("dataset_name", "data_dir") if name in task and Path(task[name]).exists()]
    task |= {name: str(Path(task[name]).resolve()) for name in paths}
    return {**task, "reward": [str(Path(name).resolve()) if ".py:" in name else name for name in reward_names(choices)]}


def add_callbacks(trainer: CreditTrainer, choices: Choices, pusher: PushCallback | None) -> None:
    """Adds evaluation, pages for trackers and pushes during training, if flags ask for them, and what `trl-credit
    compare` reads. Raises what [`EvaluationCallback`] and [`CreditPageCallback`] do."""
    script = choices.script
    trainer.add_callback(ProgressLines())
    if script.evaluation_protocol:
        options = {"data_dir": choices.data.data_dir, "prompt_style": choices.data.prompt_style}
        options |= {"protocol": script.evaluation_protocol, "every_n_steps": script.evaluate_every}
        trainer.add_callback(EvaluationCallback(trainer, script.evaluate_on, **options))
    if has_tracker(trainer):
        trainer.add_callback(CreditPageCallback(trainer))
    if pusher is not None:
        trainer.add_callback(pusher)


def claim_folder(trainer: CreditTrainer) -> None:
    """Locks the run's folder, and removes the scores of weights that are about to change. Raises what
    [`~CreditTrainer.claim_output_dir`] does."""
    resume = trainer.args.resume_from_checkpoint
    trainer.claim_output_dir(resume)
    if trainer.accelerator.is_main_process:  # an earlier run may have left scores
        forget_after(inside(trainer.args.output_dir, "evaluation"), checkpoint_step(resume))


@safe_console()
def save_results(run: GracefulExit) -> None:
    """Writes model, plots and card, and prints where they are. Does nothing if the run had ended before this process
    and its model is there."""
    is_saved = [any(run.folder.glob("*.safetensors"))]  # the model is saved before the last checkpoint
    broadcast_object_list(is_saved)  # other nodes may not see the folder
    if run.trainer.was_done and is_saved[0]:
        return
    run.save_model()
    if run.trainer.accelerator.is_main_process:
        print(f"\n{'model':<14}{short_path(run.folder)}")
        if last := last_checkpoint(run.folder):
            print(f"{'checkpoint':<14}{short_path(last)}")
        run.trainer.results.show()


def push_results(trainer: CreditTrainer, pusher: PushCallback | None, stop: StopSignals) -> None:
    """Pushes the results, after everything is on disk, so that a failed push loses nothing."""
    if pusher is None or not trainer.accelerator.is_main_process:
        return
    try:
        print(f"pushed        {pusher.finish(short_path(trainer.args.output_dir))}")
    except (ValueError, OSError, PushError) as error:
        fail(error, code=1)
    except PushInterrupted as interrupt:
        print(f"\n{interrupt}", file=sys.stderr, flush=True)  # on a line of its own after the upload's bars
        os._exit(stop.code)  # the client's threads would keep this process alive until the Hub answers
