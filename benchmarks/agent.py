"""Credit for the turns of the embedded agent: outcome, step rewards and equal states, paired over seeds.

    python benchmarks/agent.py [--seeds 0 1 …] [--output_dir comparison/agent]      # about twenty minutes on two cores

Runs `trl-credit compare`, which writes its report into the folder. The score is the reward on the answer alone, in
training, of all responses sampled; `sum` and `to_go` are also rewarded for right calls.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from trl_credit.demo import StepCalculator


METRIC = "rewards/agent_reward/mean"
WAYS = {
    "outcome": "",  # the answer alone
    "sum": f" --reward demo_agent {Path(__file__).resolve()}:right_calls",  # what `to_go` has, as one number
    "to_go": " --returns to_go",
    "to_go_response": " --returns to_go --step_baseline response",
    "state_groups": " --returns state_groups",
    "state_loo": " --returns state_groups --state_advantage loo",
}


def right_calls(prompts: list, completions: list, **kwargs) -> list[float]:
    """The sum of the rewards that [`~trl_credit.demo.StepCalculator`] gives to the calls of each response."""
    counts = []
    for prompt, messages in zip(prompts, completions, strict=True):
        calculator = StepCalculator()
        calculator.reset(prompt)
        for message in messages:
            for call in message.get("tool_calls") or ():
                try:
                    calculator.calc(**call["function"]["arguments"])
                except (TypeError, ValueError):  # a wrong call, of which TRL tells the policy
                    pass
        counts.append(sum(calculator.step_rewards))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--output_dir", type=Path, default=Path("comparison/agent"))
    parser.add_argument("--max_steps", type=int, default=60)
    args = parser.parse_args()
    entries = [f"{name}=grpo{flags}" for name, flags in WAYS.items()]
    command = [sys.executable, "-m", "trl_credit", "compare", "--algo", *entries, "--baseline", "outcome"]
    command += ["--metric", METRIC, "--dataset_name", "demo_agent", "--max_steps", str(args.max_steps)]
    command += ["--seeds", *map(str, args.seeds), "--output_dir", str(args.output_dir)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
