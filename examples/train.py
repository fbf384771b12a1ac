"""Trains a model with one of the algorithms of trl_credit, step by step. `trl-credit train` does the same.

    accelerate launch examples/train.py                        # S-trace on the embedded model and task, no GPU needed
    accelerate launch examples/train.py --algo grpo_lambda --trace_lambda 0.98
    accelerate launch examples/train.py --config examples/recipes/s_trace/qwen3_1.7b_s_trace.yaml

Every field of the algorithm's configuration is a flag: credit knobs and all fields of GRPOConfig and TrainingArguments.
`--use_peft` and the other flags of trl.ModelConfig work too. `--help all` lists them. `--config` takes several files,
or recipes by name. Later files win, and flags win over files.
"""

import sys


if __name__ == "__main__":  # before torch and TRL are imported
    from trl_credit.cli.train import begin_training

    begin_training(sys.argv[1:])

from trl_credit.cli import training
from trl_credit.cli.graceful_exit import GracefulExit
from trl_credit.hub import PushCallback, without_waiting
from trl_credit.lab.evaluation import PROTOCOLS
from trl_credit.settings.arguments import parse_arguments
from trl_credit.support.signals import StopSignals


def main(argv: list[str]) -> None:
    training.prepare_process()
    with StopSignals() as stop:  # Ctrl-C and SIGTERM
        # all errors in the input are found here, before the first step: one line and exit code 2
        with training.errors_in_one_line(argv, stop):
            choices = parse_arguments(argv, protocols=PROTOCOLS)  # flags over the files of --config
            training.check_start(choices)
            rewards = training.make_rewards(choices)
            data = training.make_data(choices, rewards)
            # opens the repository on the Hub, so that a wrong token costs no run
            pusher = PushCallback.from_arguments(choices.args)
            command = ["accelerate", "launch", "examples/train.py"]
            trainer = training.make_trainer(choices, rewards, data, command=command)
            training.add_callbacks(trainer, choices, pusher)
            training.claim_folder(trainer)

        # an early end is one line too: Ctrl-C, a full disk, a reward that fails
        with without_waiting(pusher), GracefulExit(trainer, stop=stop, argv=argv) as run:
            trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or None)
            training.save_results(run)  # the model, plots and the card
        training.push_results(trainer, pusher, stop)


if __name__ == "__main__":
    main(sys.argv[1:])
