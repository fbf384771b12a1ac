"""Trains a model with one of the algorithms of trl_credit, step by step. `trl-credit train` does the same.

    accelerate launch examples/train.py                        # S-trace on the embedded model and task, no GPU needed
    accelerate launch examples/train.py --algo grpo_lambda --trace_lambda 0.98
    accelerate launch examples/train.py --config examples/recipes/s_trace/qwen3_1.7b_s_trace.yaml

Every field of the algorithm's configuration is a flag, from credit knobs to those of GRPOConfig and TrainingArguments;
`--use_peft` and the other flags of trl.ModelConfig work too. `--help` lists them. Several files, or recipes by name,
may follow `--config`; later ones win, and flags win over files.
"""

if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.startup import begin

    begin()

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trl_credit import CreditTrainer, training
from trl_credit.cli import in_words_of_the_user, parse_arguments
from trl_credit.hub import PushCallback, without_waiting
from trl_credit.run import Ending
from trl_credit.signals import StopSignals


class Run(NamedTuple):
    trainer: CreditTrainer
    pusher: PushCallback | None


def build(argv: list[str]) -> Run:
    """Everything that can be wrong with the input is found here, before the first step."""
    choices = parse_arguments(argv)  # flags over the files of --config
    training.check_start(choices)
    rewards = training.make_rewards(choices)
    data = training.make_data(choices, rewards)
    # opens the repository on the Hub, so that a wrong token costs no run
    pusher = PushCallback.from_arguments(choices.args, script=str(Path(sys.argv[0]).with_name("push.py")))
    trainer = training.make_trainer(choices, rewards, data, command=["accelerate", "launch", "examples/train.py"])
    training.add_evaluation(trainer, choices)
    if pusher is not None:
        trainer.add_callback(pusher)
    training.claim_folder(trainer)
    return Run(trainer, pusher)


def main(argv: list[str]) -> None:
    training.prepare_process()
    with StopSignals() as stop:
        with training.mistakes_in_one_line(argv, stop):
            trainer, pusher = build(argv)
        # what ends the run before its time is one line: Ctrl-C, a full disk, a reward that is refused
        ending = Ending(trainer, stop=stop, argv=argv, in_words=partial(in_words_of_the_user, argv=argv))
        with without_waiting(pusher), ending as run:
            trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or None)
            training.save_results(run)  # the model, plots and the card
        training.push_results(trainer, pusher, stop)


if __name__ == "__main__":
    main(sys.argv[1:])
