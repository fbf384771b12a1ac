"""Trains a model with one of the algorithms of trl_credit.

    accelerate launch examples/train.py                        # S-trace on the embedded model and task, no GPU needed
    accelerate launch examples/train.py --algo grpo_lambda --trace_lambda 0.98
    accelerate launch examples/train.py --config examples/configs/s_trace_gsm8k.yaml

Every field of the algorithm's configuration is a flag, from credit knobs to those of GRPOConfig and TrainingArguments;
`--use_peft` and the other flags of trl.ModelConfig work too. `--help` lists them.
"""

import argparse
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback
from transformers.utils import logging
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from trl_credit import ALGORITHMS
from trl_credit.checkpoints import is_complete, last_checkpoint
from trl_credit.data import load_prompts
from trl_credit.demo import DEMO_SETTINGS, demo_dataset, demo_model_path
from trl_credit.report import ConsoleCallback, plot_rewards
from trl_credit.rewards import accuracy_reward, check_answers, resolve_reward


@dataclass
class ScriptArguments:
    algo: str = field(default="s_trace", metadata={"help": f"Algorithm: {', '.join(ALGORITHMS)}."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Hub name, or a JSONL, JSON, Parquet or CSV file. Default: the embedded task."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a set of the Hub."})
    dataset_split: str = field(default="train", metadata={"help": "Split of a set of the Hub."})
    prompt_column: str | None = field(default=None, metadata={"help": "Default: prompt, problem or question."})
    answer_column: str | None = field(default=None, metadata={"help": "Default: answer, solution or target."})
    reward: list[str] | None = field(
        default=None, metadata={"help": "'accuracy', 'demo', package.module.function or file.py:function; several add."}
    )


def look_ahead(argv: list[str]) -> tuple[str, bool]:
    """The algorithm, needed before the flags of its configuration can be parsed, and whether a model was given."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--algo", "--config", "--model_name_or_path"):
        first.add_argument(flag)
    known, _ = first.parse_known_args(argv)
    in_file = {}
    if known.config is not None:
        if not Path(known.config).is_file():
            raise ValueError(f"there is no file {known.config!r}: check --config")
        try:
            in_file = yaml.safe_load(Path(known.config).read_text()) or {}
        except yaml.YAMLError as error:
            raise ValueError(f"{known.config!r} cannot be read as YAML: {error}") from error
        if not isinstance(in_file, dict):
            raise ValueError(f"{known.config!r} must hold `name: value` lines: check --config")
    algo = str(known.algo or in_file.get("algo") or ScriptArguments.algo)
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algo!r}: choose one of {', '.join(ALGORITHMS)}")
    return algo, (known.model_name_or_path or in_file.get("model_name_or_path")) is not None


def build(argv: list[str]):
    """Everything that can be wrong with the input is found here, before the first step."""
    algo, own_model = look_ahead(argv)
    config_class, trainer_class = ALGORITHMS[algo]
    parser = TrlParser((ScriptArguments, config_class, ModelConfig), allow_abbrev=False)
    parser.set_defaults(algo=algo, output_dir=f"runs/{algo}", report_to="none", logging_steps=1)
    if not own_model:
        parser.set_defaults(**DEMO_SETTINGS)
    script, args, model_args = parser.parse_args_and_config(argv)

    if resume := args.resume_from_checkpoint:
        if str(resume).lower() == "true":  # the last one
            resume = last_checkpoint(args.output_dir) or args.output_dir
        if not is_complete(resume):
            raise ValueError(f"there is no checkpoint in {resume!r}: check --resume_from_checkpoint")
        args.resume_from_checkpoint = resume
    model = model_args.model_name_or_path or demo_model_path()
    if script.dataset_name is None:
        data = demo_dataset(seed=args.seed)
        rewards = [resolve_reward(name) for name in script.reward or ["demo"]]
    else:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        data = load_prompts(
            script.dataset_name,
            config=script.dataset_config,
            split=script.dataset_split,
            prompt_column=script.prompt_column,
            answer_column=script.answer_column,
            conversational=tokenizer.chat_template is not None,
        )
        rewards = [resolve_reward(name) for name in script.reward or ["accuracy"]]
        if accuracy_reward in rewards:
            check_answers(data["answer"][:200])
    if own_model:
        args.model_init_kwargs = {
            **(args.model_init_kwargs or {}),
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
        }
    return trainer_class(
        model=model,
        reward_funcs=rewards,
        args=args,
        train_dataset=data,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )


def main(argv: list[str]) -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.disable_progress_bar()  # of loading; training has its own
    sys.path.append(os.getcwd())  # for --reward package.module.function
    try:
        trainer = build(argv)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(ConsoleCallback)

    args, folder = trainer.args, Path(trainer.args.output_dir)
    main_process = trainer.accelerator.is_main_process
    if main_process:
        print(f"{trainer._name} on {len(trainer.train_dataset):,} prompts, {args.num_generations} responses each")
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint or None)
    push, args.push_to_hub = args.push_to_hub, False  # or save_model pushes before the card and the curve are there
    trainer.save_model()
    if main_process:
        trainer.create_model_card(model_name=folder.name)
        ends = plot_rewards(trainer.state.log_history, folder / "reward_curve.png", title=f"{trainer._name}: reward")
        print(f"\ncheckpoint    {folder}\nmodel card    {folder / 'README.md'}")
        print(f"reward curve  {folder / 'reward_curve.png'}")
        if ends is not None:
            print(f"reward        {ends[0]:.3f} → {ends[1]:.3f}")
    if push:  # last, so that a failed push loses nothing
        trainer.push_to_hub()


if __name__ == "__main__":
    main(sys.argv[1:])
