"""Trains a model with one of the algorithms of trl_credit.

    accelerate launch examples/train.py                        # S-trace on the embedded model and task, no GPU needed
    accelerate launch examples/train.py --algo grpo_lambda --trace_lambda 0.98
    accelerate launch examples/train.py --config examples/recipes/s_trace/qwen3_1.7b_s_trace.yaml

Every field of the algorithm's configuration is a flag, from credit knobs to those of GRPOConfig and TrainingArguments;
`--use_peft` and the other flags of trl.ModelConfig work too. `--help` lists them. Several files may follow `--config`;
later ones win, and flags win over files.
"""

if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.startup import begin

    begin()

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformers import AutoTokenizer, PrinterCallback, ProgressCallback
from transformers.utils import logging
from trl import get_peft_config, get_quantization_config

from trl_credit import ALGORITHMS, CreditTrainer
from trl_credit.checks import check_model
from trl_credit.cli import DEMO, in_words_of_the_user, parse_arguments
from trl_credit.data import hub_source, load_from_arguments, warn_of_unknown_tokens
from trl_credit.demo import demo_dataset, demo_model_path
from trl_credit.evaluation import EvaluationCallback, forget_after
from trl_credit.hub import PushCallback, PushError, PushInterrupted, TrainingData, without_waiting, write_model_card
from trl_credit.mistakes import check_output_dir, fail
from trl_credit.report import ConsoleCallback, describe_sampling
from trl_credit.rewards import accuracy_reward, check_answers, default_reward, resolve_reward
from trl_credit.rewards.signature import required_parameters
from trl_credit.run import Ending
from trl_credit.signals import StopSignals, is_main
from trl_credit.startup import show_vllm_version
from trl_credit.trainer.checkpointed import find_last
from trl_credit.trainer.checkpoints import checkpoint_step, is_complete
from trl_credit.trainer.refusals import check_amount


class Run(NamedTuple):
    trainer: CreditTrainer
    write_card: Callable[[], Path]
    pusher: PushCallback | None


def build(argv: list[str]) -> Run:
    """Everything that can be wrong with the input is found here, before the first step."""
    script, data_args, args, model_args, config = parse_arguments(argv)
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
    model, dataset = model_args.model_name_or_path, data_args.dataset_name or DEMO
    if model != demo_model_path():
        if data_args.dataset_name is None:
            raise ValueError(
                f"model_name_or_path={model!r} has no data to train on: set --dataset_name (demo is the embedded task)"
            )
        check_model(model, revision=model_args.model_revision)
    names = script.reward or [default_reward(dataset)]
    rewards = [resolve_reward(name, max_completion_length=args.max_completion_length) for name in names]
    if dataset == DEMO:
        data = demo_dataset(seed=args.seed)
    else:
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        except OSError as error:
            raise ValueError(f"--model_name_or_path {model!r}: {error}") from error
        needs_answers = any("answer" in required_parameters(reward) for reward in rewards)
        data = load_from_arguments(data_args, tokenizer=tokenizer, seed=args.seed, needs_answers=needs_answers)
        warn_of_unknown_tokens(data["prompt"][:20], tokenizer)
        if accuracy_reward in rewards:
            if "answer" not in data.column_names:
                raise ValueError(f"{dataset!r} has no answers for the reward: set --answer_column, or another --reward")
            check_answers(data["answer"])
    check_amount(args, data)
    if model != demo_model_path():
        args.model_init_kwargs = {
            **(args.model_init_kwargs or {}),
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
        }
    pusher = PushCallback.from_arguments(args, script=str(Path(sys.argv[0]).with_name("push.py")))
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
    if script.evaluation_protocol:
        evaluation = EvaluationCallback(
            trainer,
            script.evaluate_on,
            protocol=script.evaluation_protocol,
            every_n_steps=script.evaluate_every,
            data_dir=data_args.data_dir,
            prompt_style=data_args.prompt_style,
        )
        trainer.add_callback(evaluation)
    if pusher is not None:
        trainer.add_callback(pusher)
    trainer.claim_output_dir(args.resume_from_checkpoint)
    if trainer.accelerator.is_main_process:  # what an earlier run left in this folder
        forget_after(Path(args.output_dir) / "evaluation", checkpoint_step(args.resume_from_checkpoint))
    repo, revision = hub_source(data_args)
    write_card = partial(
        write_model_card,
        trainer,
        name=trainer.algorithm_name,
        data=TrainingData(dataset, len(data), hub_id=repo, revision=revision, cleaning=data.info.description or None),
        choices=(script, data_args, model_args),
        recipe={"algo": script.algo} | ({"env": config["env"]} if config.get("env") else {}),
        command=["accelerate", "launch", "examples/train.py"],
    )
    return Run(trainer, write_card, pusher)


def main(argv: list[str]) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable_progress_bar()  # of loading; training has its own
    sys.path.append(os.getcwd())  # for --reward package.module.function
    with StopSignals() as stop:
        try:
            trainer, write_card, pusher = build(argv)
        except (ValueError, OSError, ImportError, RuntimeError, PushError) as error:
            fail(in_words_of_the_user(error, argv), code=2)
        except KeyboardInterrupt:
            print(f"\ninterrupted before the first step ({stop.cause}): nothing was trained", file=sys.stderr)
            raise SystemExit(stop.code) from None
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ConsoleCallback)

        args, folder, name = trainer.args, Path(trainer.args.output_dir), trainer.algorithm_name
        main_process = trainer.accelerator.is_main_process
        if main_process:
            print(f"{name} on {len(trainer.train_dataset):,} prompts: {describe_sampling(args)}")
        in_words = partial(in_words_of_the_user, argv=argv)
        # what ends the run before its time is one line: Ctrl-C, a full disk, a reward that is refused
        ending = Ending(trainer, write_card, stop=stop, argv=argv, in_words=in_words)
        with without_waiting(pusher), ending as run:
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint or None)
            if trainer.was_done and run.has_model():
                return  # as it was; the trainer has said so
            run.save_model()
            if main_process:
                card, ends = run.write_results()
                print(f"\ncheckpoint    {folder}\nmodel card    {card}")
                print(f"plots         {folder / 'reward_curve.png'}, {folder / 'credit_plot.png'}")
                if (table := folder / "evaluation" / "evaluation.md").is_file():
                    print(f"evaluation    {table}")
                if ends is not None:
                    print(f"reward        {ends[0]:.3f} → {ends[1]:.3f}")
        if pusher is not None and main_process:  # last, so that a failed push loses nothing
            try:
                print(f"pushed        {pusher.finish(folder)}")
            except (ValueError, OSError, PushError) as error:
                fail(error, code=1)
            except PushInterrupted as interrupt:
                print(f"\n{interrupt}", file=sys.stderr, flush=True)  # below the bars of the upload
                os._exit(stop.code)  # threads of the client would keep this process until the Hub answers


if __name__ == "__main__":
    main(sys.argv[1:])
