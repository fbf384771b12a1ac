"""The embedded task, its verifier, its tokenizer and the checkpoint that half knows it. No network."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_credit.demo import DEMO_MAX_COMPLETION_LENGTH, demo_dataset, demo_model_path, demo_reward
from trl_credit.demo.task import CHARACTERS, draw_problem, work_out


MEGABYTE = 10**6


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(demo_model_path(), local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(demo_model_path(), local_files_only=True).eval()


def respond(model, tokenizer, prompts: list[str], **generate) -> list[str]:
    """One response to each prompt, as text without special tokens."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=DEMO_MAX_COMPLETION_LENGTH, **generate)
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].size(1) :], skip_special_tokens=True)


def test_dataset_is_a_function_of_its_seed():
    state = random.getstate()
    first = demo_dataset(64, seed=3)
    assert random.getstate() == state  # the global generator is not drawn from
    assert first.column_names == ["prompt", "answer"]
    assert first.to_list() == demo_dataset(64, seed=3).to_list()
    assert first.to_list() != demo_dataset(64, seed=4).to_list()
    assert first.to_list() == demo_dataset(128, seed=3).to_list()[:64]


def test_answers_are_the_sums_modulo_10():
    for row in demo_dataset(256, seed=5):
        assert int(row["answer"]) == eval(row["prompt"].removesuffix(":")) % 10  # ours, not a model's: safe to evaluate


def test_every_written_step_is_right_and_carries_the_last_one_on():
    data = demo_dataset(64, seed=6)
    for prompt in data["prompt"]:
        running = prompt[0]
        for step in work_out(prompt).split(";"):
            left, result = step.split("=")
            assert left.startswith(running) and int(result) == eval(left) % 10
            running = result


def test_worked_solutions_are_rewarded_and_every_other_last_digit_is_not():
    data = demo_dataset(64, seed=7)
    solutions, answers = [work_out(prompt) for prompt in data["prompt"]], list(data["answer"])
    assert demo_reward(solutions, answers) == [1.0] * 64
    for shift in range(1, 10):
        assert demo_reward([text[:-1] + str((int(text[-1]) + shift) % 10) for text in solutions], answers) == [0.0] * 64


def test_errors_come_at_the_rate_asked_for():
    """A wrong digit is uniform over the other nine and is carried on."""
    rng = random.Random(0)
    wrong = total = 0
    for _ in range(2000):
        for step in work_out(draw_problem(rng), rng=rng, error_rate=0.25).split(";"):
            left, result = step.split("=")
            wrong += int(result) != eval(left) % 10
            total += 1
    assert abs(wrong / total - 0.25) < 4 * (0.25 * 0.75 / total) ** 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "=",
        "=5;",
        "=5 ",
        "=5\n",
        "= 5",
        "==",
        "=05",
        "=-5",
        "=5.0",
        "=\N{FULLWIDTH DIGIT FIVE}",
        "=\N{SUPERSCRIPT TWO}",
        "=\x00",
        "\ud800",
        "=" * MEGABYTE,
        "5" * MEGABYTE,
        "3+2=5;" * (MEGABYTE // 6),
        "(" * MEGABYTE,
    ],
    ids=lambda text: f"{len(text)}:{ascii(text[:6])}",
)
def test_verifier_takes_any_text(text):
    assert demo_reward([text], ["5"]) == [0.0]


def test_a_long_response_is_judged_by_its_end():
    assert demo_reward(["3+2=6;" * (MEGABYTE // 6) + "3+2=5"], ["5"]) == [1.0]


def test_rewards_are_floats_and_other_columns_are_ignored():
    rewards = demo_reward(["1+1=2", "1+1=3"], ["2", "2"], prompts=["", ""], completion_ids=[[], []], trainer_state=None)
    assert rewards == [1.0, 0.0] and all(type(reward) is float for reward in rewards)


def test_tokenizer_round_trip(tokenizer):
    for prompt in demo_dataset(32)["prompt"]:
        text = prompt + work_out(prompt)
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text) and tokenizer.decode(ids) == text
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in tokenizer(CHARACTERS)["input_ids"]
    assert tokenizer("é\n")["input_ids"] == [tokenizer.unk_token_id] * 2
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_solutions_fit_the_length(tokenizer):
    longest = max(len(tokenizer(work_out(prompt))["input_ids"]) for prompt in demo_dataset(32)["prompt"])
    assert longest + 1 <= DEMO_MAX_COMPLETION_LENGTH <= 40  # and the end-of-sequence token


def test_checkpoint_is_small_and_whole(model, tokenizer):
    folder = Path(demo_model_path())
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names <= {file.name for file in folder.iterdir()}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1.5 * MEGABYTE
    assert model.config.model_type == "qwen3" and model.config.vocab_size == len(tokenizer)
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_the_steps_are_learnt_and_sampling_errs(model, tokenizer):
    """Else reinforcement learning would have nothing to build on, or nothing left to do."""
    data = demo_dataset(512, seed=11)
    prompts, answers = list(data["prompt"]), list(data["answer"])
    assert sum(demo_reward(respond(model, tokenizer, prompts, do_sample=False), answers)) / 512 > 0.95
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sampled = respond(model, tokenizer, prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    assert 0.2 < sum(demo_reward(sampled, answers)) / 512 < 0.4
