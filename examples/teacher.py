"""Trains with a teacher: a second, larger model, or the policy itself with the right answer in its prompt.

    python examples/teacher.py                                 # a minute or two on two CPU cores, no download
    python examples/teacher.py --data gsm8k                    # SmolLM2-360M teaches SmolLM2-135M
    python examples/teacher.py --data gsm8k --gold             # SmolLM2-135M teaches itself, told the answer
    python examples/teacher.py --data my.jsonl --model Qwen/Qwen3-1.7B --teacher Qwen/Qwen3-8B

The teacher scores the tokens that the policy sampled. OPD adds the difference of log-probabilities to the advantage of
each token. With --gold, RLSD scales the advantage by it, and the reward alone decides its sign. Without --data both
only show that they run. The teacher is then the embedded model before training, which holds the policy back, or with
--gold the embedded model with an answer in its prompt that it cannot read. `trl-credit help teacher` says more.
"""

import argparse
import sys

from trl_credit import OPDConfig, OPDTrainer, RLSDConfig, RLSDTrainer, accuracy_reward
from trl_credit.data import load_prompts
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward, demo_settings


REAL = {  # for one small GPU; tune the learning rate first
    "learning_rate": 1e-6,
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 8,
    "max_completion_length": 512,
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="A set of docs/data.md or a file with problems and answers. Default: embedded.")
    parser.add_argument("--model", help="The policy, a name or a folder.")
    parser.add_argument("--teacher", help="A model with the policy's vocabulary.")
    parser.add_argument("--gold", action="store_true", help="The policy, told the answer, in place of a teacher.")
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--output_dir", default="runs/teacher")
    chosen = parser.parse_args(argv)

    embedded = chosen.data is None
    algorithm, trainer_class = (RLSDConfig, RLSDTrainer) if chosen.gold else (OPDConfig, OPDTrainer)
    settings = demo_settings(algorithm) if embedded else dict(REAL)
    if not chosen.gold:
        default = demo_model_path() if embedded else "HuggingFaceTB/SmolLM2-360M-Instruct"
        settings["teacher"] = chosen.teacher or default
    elif embedded:  # in the 18 symbols that it knows
        settings["teacher_prompt"] = "{answer};{prompt}"
    # else RLSD's own: "{prompt}\n\nThe reference answer is {answer}."
    settings |= {"max_steps": chosen.max_steps, "logging_steps": min(10, chosen.max_steps), "log_credit": 50}
    trainer = trainer_class(
        model=chosen.model or (demo_model_path() if embedded else "HuggingFaceTB/SmolLM2-135M-Instruct"),
        reward_funcs=demo_reward if embedded else accuracy_reward,
        args=algorithm(output_dir=chosen.output_dir, report_to="none", **settings),
        train_dataset=demo_dataset() if embedded else load_prompts(chosen.data, conversational=True),
    )
    trainer.train()
    trainer.save_model()
    last = next(row for row in reversed(trainer.state.log_history) if "reward" in row)
    for name in (name for name in last if name.startswith("credit/teacher/")):
        print(f"{name:38} {last[name]}")  # what they mean: `trl-credit help metrics`


if __name__ == "__main__":
    main(sys.argv[1:])
