"""The embedded task, its verifier, and the checkpoint in the package."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.demo.task import work_out
from trl_credit.demo.warm_start import sampled_accuracy, train


def test_dataset_depends_on_its_seed_alone():
    assert demo_dataset(50, seed=3)["prompt"][:] == demo_dataset(50, seed=3)["prompt"][:]
    assert demo_dataset(50, seed=3)["prompt"][:] != demo_dataset(50, seed=4)["prompt"][:]


def test_worked_solutions_are_right():
    assert work_out("3+2-1-3+1:") == "3+2=5;5-1=4;4-3=1;1+1=2"
    assert work_out("9+3-3-3+1:") == "9+3=2;2-3=9;9-3=6;6+1=7"
    data = demo_dataset(200)
    for prompt, answer in zip(data["prompt"], data["answer"], strict=True):
        value = eval(prompt[:-1]) % 10  # the prompts are made above, of digits and signs alone
        assert answer == str(value)
    texts = [work_out(prompt) for prompt in data["prompt"]]
    assert demo_reward(texts, data["answer"]) == [1.0] * 200


def test_verifier_takes_any_text():
    junk = ["", "=", "5", "=55", "x=5 ", "=\u0665", "=" * 10**6, "\x00", "<b>=6</b>", "1=5"]
    assert demo_reward(junk, ["5"] * len(junk)) == [0.0] * (len(junk) - 1) + [1.0]


def test_packaged_model_is_small_and_errs_at_the_rate_promised():
    folder = Path(demo_model_path())
    assert sum(p.stat().st_size for p in folder.iterdir()) < 1.5e6
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    text = "3+2-1-3+1:3+2=5;5-1=4"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    set_seed(0)
    assert 0.2 < sampled_accuracy(model, tokenizer) < 0.4


def test_warm_start_runs_from_nothing_and_repeats():
    first, _ = train(4, seed=1)
    second, _ = train(4, seed=1)
    assert all((a == b).all() for a, b in zip(first.parameters(), second.parameters(), strict=True))
