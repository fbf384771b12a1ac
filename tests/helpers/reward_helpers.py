"""What the tests of reward functions give to a function, and to the training script."""

GIVEN = {"prompts": ["1+1=", "2+2="], "completions": ["a", "b"]}
QUICK = ["--max_steps", "1", "--per_device_train_batch_size", "8", "--num_generations", "4", "--output_dir", "out"]


def scaled(weight):
    """A reward with signal for a random model, times a weight."""

    def share(completions, **kwargs):
        return [weight * sum(c in "abc" for c in text) for text in completions]

    return share
