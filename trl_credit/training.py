"""The steps of a training run from a command line, in their order: for `trl-credit train` and `examples/train.py`."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from transformers.utils import logging
from trl import get_peft_config, get_quantization_config

from .algorithms import ALGORITHMS
from .checks import check_model
from .cli import DEMO, Choices, in_words_of_the_user
from .data import hub_source, load_from_arguments, warn_of_unknown_tokens
from .demo import demo_dataset, demo_model_path
from .evaluation import EvaluationCallback, forget_after
from .hub import PushCallback, PushError, PushInterrupted, TrainingData
from .mistakes import check_output_dir, fail
from .rewards import accuracy_reward, check_answers, default_reward, resolve_reward
from .rewards.signature import required_parameters
from .run import Ending
from .signals import StopSignals, is_main
from .startup import show_vllm_version
from .trainer import CreditTrainer
from .trainer.checkpointed import find_last
from .trainer.checkpoints import checkpoint_step, is_complete
from .trainer.refusals import check_amount


def prepare_process() -> None:
    """What a process is set to before a run: quiet libraries, and modules of the current folder."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable_progress_bar()  # of loading; training has its own
    sys.path.append(os.getcwd())  # for --reward package.module.function


@contextmanager
def mistakes_in_one_line(argv: list[str], stop: StopSignals) -> Iterator[None]:
    """Within it a run is built: what is wrong with the input is one line, in the user's words, and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError, PushError) as error:
        fail(in_words_of_the_user(error, argv), code=2)
    except KeyboardInterrupt:
        print(f"\ninterrupted before the first step ({stop.cause}): nothing was trained", file=sys.stderr)
        raise SystemExit(stop.code) from None


def check_start(choices: Choices) -> None:
    """Whether the run can write to its folder, and which checkpoint it goes on from.

    Raises:
        ValueError: a folder, a checkpoint or a model that will not do.
    """
    args, model = choices.args, choices.model.model_name_or_path
    if is_main():  # other nodes need not have the folder
        check_output_dir(args.output_dir)
    if args.use_vllm:
        show_vllm_version()
    if resume := args.resume_from_checkpoint:
        if str(resume).lower() == "true":  # the last one
            resume = find_last(args.output_dir)
        if not is_complete(resume):
            raise ValueError(f"there is no checkpoint in {str(resume)!r}: check --resume_from_checkpoint")
        args.resume_from_checkpoint = resume
    if model != demo_model_path():
        if choices.data.dataset_name is None:
            raise ValueError(
                f"model_name_or_path={model!r} has no data to train on: set --dataset_name (demo is the embedded task)"
            )
        check_model(model, revision=choices.model.model_revision)


def make_rewards(choices: Choices) -> list[Callable]:
    """The reward functions by their names, or that of the data set. Raises what [`resolve_reward`] does."""
    names = choices.script.reward or [default_reward(choices.data.dataset_name or DEMO)]
    return [resolve_reward(name, max_completion_length=choices.args.max_completion_length) for name in names]


def make_data(choices: Choices, rewards: list[Callable]) -> Dataset:
    """The prompts, with the columns that the rewards ask for.

    Raises:
        ValueError: a set or a model that is not there, answers that no reward can read, or too few rows for one step.
    """
    model, dataset, args = choices.model.model_name_or_path, choices.data.dataset_name or DEMO, choices.args
    if dataset == DEMO:
        data = demo_dataset(seed=args.seed)
    else:
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        except OSError as error:
            raise ValueError(f"--model_name_or_path {model!r}: {error}") from error
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
    """The algorithm's trainer, whose card says what the run's settings were, and by which command it was started.

    Raises:
        ValueError: `model_init_kwargs` that the model does not take.
    """
    script, data_args, args, model_args, files = choices
    model = model_args.model_name_or_path
    if model != demo_model_path():
        args.model_init_kwargs = {
            **(args.model_init_kwargs or {}),
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
        }
    try:
        trainer = ALGORITHMS[script.algo][1](
            model=model,
            reward_funcs=rewards,
            args=args,
            train_dataset=data,
            peft_config=get_peft_config(model_args),
            quantization_config=get_quantization_config(model_args),
        )
    except TypeError as error:
        if args.model_init_kwargs and "unexpected keyword argument" in str(error):
            raise ValueError(f"model_init_kwargs: {error}") from error
        raise
    repo, revision = hub_source(data_args)
    cleaning = data.info.description or None
    trainer.results.card = {
        "data": TrainingData(data_args.dataset_name or DEMO, len(data), repo, revision, cleaning),
        "choices": (script, data_args, model_args),
        "recipe": {"algo": script.algo} | ({"env": files["env"]} if files.get("env") else {}),
        "command": command,
    }
    return trainer


def add_evaluation(trainer: CreditTrainer, choices: Choices) -> None:
    """Evaluates in the course of training, where the flags ask for it. Raises what [`EvaluationCallback`] does."""
    if choices.script.evaluation_protocol:
        evaluation = EvaluationCallback(
            trainer,
            choices.script.evaluate_on,
            protocol=choices.script.evaluation_protocol,
            every_n_steps=choices.script.evaluate_every,
            data_dir=choices.data.data_dir,
            prompt_style=choices.data.prompt_style,
        )
        trainer.add_callback(evaluation)


def claim_folder(trainer: CreditTrainer) -> None:
    """Takes the run's folder, and forgets the scores of weights that are about to change. Raises what
    [`~CreditTrainer.claim_output_dir`] does."""
    resume = trainer.args.resume_from_checkpoint
    trainer.claim_output_dir(resume)
    if trainer.accelerator.is_main_process:  # what an earlier run left in this folder
        forget_after(Path(trainer.args.output_dir) / "evaluation", checkpoint_step(resume))


def save_results(run: Ending) -> None:
    """Writes model, plots and card, and says where they are. Of a run that was at its end before, and has its model,
    nothing: the trainer has said so."""
    trainer, folder = run.trainer, run.folder
    if trainer.was_done and run.has_model():
        return
    run.save_model()
    if trainer.accelerator.is_main_process:
        results = run.write_results()
        print(f"\n{'checkpoint':<14}{folder}")
        trainer.results.say(results)


def push_results(trainer: CreditTrainer, pusher: PushCallback | None, stop: StopSignals) -> None:
    """Last, so that a push that fails loses nothing."""
    if pusher is None or not trainer.accelerator.is_main_process:
        return
    try:
        print(f"pushed        {pusher.finish(trainer.args.output_dir)}")
    except (ValueError, OSError, PushError) as error:
        fail(error, code=1)
    except PushInterrupted as interrupt:
        print(f"\n{interrupt}", file=sys.stderr, flush=True)  # below the bars of the upload
        os._exit(stop.code)  # threads of the client would keep this process until the Hub answers
