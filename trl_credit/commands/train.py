"""`trl-credit train`: what `examples/train.py` does, by the same steps; in several processes if it is asked to."""

from functools import partial
from typing import TYPE_CHECKING

from ..mistakes import fail
from ..signals import StopSignals, command_here
from ..startup import begin
from .launch import LAUNCHER_HELP, launch, take_launcher


if TYPE_CHECKING:
    from ..hub import PushCallback
    from ..trainer import CreditTrainer

PROGRAM = ("trl-credit", "train")


def main(argv: list[str]) -> int:
    """The exit code, which is that of the run's main process where several are started."""
    try:
        launcher, rest = take_launcher(argv)
    except ValueError as error:
        fail(error, code=2)
    begin()
    if launcher is not None and not {"-h", "--help"} & set(rest):
        return launch(launcher, PROGRAM, rest)
    from .. import training
    from ..cli import in_words_of_the_user
    from ..hub import without_waiting
    from ..run import Ending

    command = command_here(PROGRAM)
    training.prepare_process()
    with StopSignals(command) as stop:
        with training.mistakes_in_one_line(rest, stop):
            trainer, pusher = build(rest, command=command)
        ending = Ending(trainer, stop=stop, argv=rest, in_words=partial(in_words_of_the_user, argv=rest))
        with without_waiting(pusher), ending as run:
            trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or None)
            training.save_results(run)
        training.push_results(trainer, pusher, stop)
    return 0


def build(argv: list[str], *, command: list[str]) -> "tuple[CreditTrainer, PushCallback | None]":
    """Everything that can be wrong with the input is found here, before the first step."""
    from .. import training
    from ..cli import parse_arguments
    from ..hub import PushCallback

    choices = parse_arguments(argv, prog=" ".join(PROGRAM), epilog=LAUNCHER_HELP)
    training.check_start(choices)
    rewards = training.make_rewards(choices)
    data = training.make_data(choices, rewards)
    pusher = PushCallback.from_arguments(choices.args)
    trainer = training.make_trainer(choices, rewards, data, command=command)
    training.add_evaluation(trainer, choices)
    if pusher is not None:
        trainer.add_callback(pusher)
    training.claim_folder(trainer)
    return trainer, pusher
