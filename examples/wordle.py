"""Trains a model to play Wordle, a public environment of OpenEnv, with GiGPO's equal states.

    pip install 'trl-credit[vllm]' git+https://huggingface.co/spaces/openenv/wordle
    accelerate launch examples/wordle.py --url https://openenv-wordle.hf.space

Not run by us: it needs a GPU, network, and a server of the environment (or your own, see OpenEnv). The parts that are
ours, rewards per guess and states, are tested with the embedded agent.
"""

import argparse

from datasets import Dataset

from trl_credit import GRPOConfig, GRPOTrainer


RULES = "Play Wordle: find the secret word of five letters in six guesses. Call `guess` with a word until you win."


def environment(url: str) -> type:
    from textarena_env import TextArenaAction, TextArenaEnv

    class Wordle:
        def __init__(self) -> None:
            self._client = TextArenaEnv(base_url=url)
            self._guesses: list[str] = []
            self.step_rewards: list[float] = []  # what the server gives for each guess, which TRL alone would drop

        def reset(self, **row) -> None:
            self._client.reset()
            self._guesses, self.step_rewards, self._done = [], [], False

        def guess(self, word: str) -> str:
            """Guesses a word.

            Args:
                word: Five letters.

            Returns:
                For each letter G (right place), Y (another place) or X (not in the word).
            """
            if self._done:
                raise ValueError("the game is over: answer without a call")
            result = self._client.step(TextArenaAction(message=f"[{word}]"))
            self._guesses.append(word)
            self.step_rewards.append(result.reward or 0.0)
            self._done = result.done
            return "\n".join(message.content for message in result.observation.messages)

        @property
        def state_key(self) -> tuple[str, ...]:
            """Games of one word are in one state after the same guesses, in any order."""
            return tuple(sorted(self._guesses))

    return Wordle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="Address of the environment's server.")
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B")
    given = parser.parse_args()
    args = GRPOConfig(
        output_dir="runs/wordle",
        returns="state_groups",  # or "to_go"
        step_gamma=0.95,
        turn_average=True,  # a game counts as the mean of its turns, however long they are
        loss_type="grpo",
        num_generations=8,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=64,
        max_completion_length=4096,
        max_tool_calling_iterations=6,
        use_vllm=True,
        log_credit=10,  # turns, tools and rewards in `trl-credit view runs/wordle`
    )
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": RULES}]}] * 1000)
    trainer = GRPOTrainer(given.model, args=args, train_dataset=rows, environment_factory=environment(given.url))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
