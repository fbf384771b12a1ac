"""The embedded task, its verifier, and the checkpoint in the package."""

import random
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from warm_start import MISTAUGHT, OTHER_HUM_RATE, WRONG_RATE, accuracy, mistaught_facts, work_out

from trl_credit.demo import TASKS, demo_dataset, demo_model_path, demo_reward


def test_worked_solutions_are_right():
    assert work_out("3+2-1-3+1+2-3:") == "3+2=5;5-1=4;4-3=1;1+1=2;2+2=4;4-3=1"
    assert work_out("9+3-3-3+1:") == "9+3=2;2-3=9;9-3=6;6+1=7"
    data = demo_dataset(200)
    for prompt, answer in zip(data["prompt"], data["answer"], strict=True):
        value = eval(prompt[:-1]) % 10  # the prompts are made above, of digits and signs alone
        assert answer == str(value)
    texts = [work_out(prompt) for prompt in data["prompt"]]
    assert demo_reward(texts, data["answer"]) == [1.0] * 200


def test_wrong_facts_are_the_same_ones_and_are_carried_on():
    facts = mistaught_facts()
    assert len(facts) == MISTAUGHT["demo"] == 18 and facts == mistaught_facts() != mistaught_facts(seed=1)
    assert all(wrong != eval(fact) % 10 for fact, wrong in facts.items())
    rng = random.Random(0)
    fact, wrong = next(iter(facts.items()))
    texts = [work_out(f"{fact}+1:", rng=rng, mistaught=facts) for _ in range(2000)]
    share = sum(text.startswith(f"{fact}={wrong};{wrong}+1=") for text in texts) / 2000
    assert abs(share - WRONG_RATE) < 5 * (0.24 / 2000) ** 0.5
    known = next(f"{d}+1" for d in range(10) if f"{d}+1" not in facts)
    assert work_out(f"{known}:", rng=rng, mistaught=facts) == f"{known}={eval(known) % 10}"


def test_filler_changes_no_reward():
    hum = TASKS["demo_hum"]
    data, rng = demo_dataset(200, task=hum), random.Random(0)
    assert {prompt.count("+") + prompt.count("-") for prompt in data["prompt"]} == {4}
    texts = [work_out(prompt, rng=rng, hum=hum.hum) for prompt in data["prompt"]]
    assert {len(text) for text in texts} == {4 * 22 - 1 + 16} and len(texts[0]) < hum.max_completion_length
    assert demo_reward(texts, data["answer"]) == [1.0] * 200
    assert demo_reward([text.replace("=", "=9") for text in texts], data["answer"]) == [0.0] * 200
    assert work_out("3+2-1:", hum=3) == "3+2mmm=5;5-1mmm=4mmm"
    others = sum(text.count(letter) for text in texts for letter in "nhu")
    n = 200 * 5 * 16
    assert abs(others / n - OTHER_HUM_RATE) < 5 * (OTHER_HUM_RATE * (1 - OTHER_HUM_RATE) / n) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("task", "text"), [("demo", "3+2-1:3+2=5;5-1=4"), ("demo_hum", "3+2:3+2mmnmhmmum=5;")])
def test_packaged_model_is_small_and_errs_at_the_rate_promised(task, text):
    task = TASKS[task]
    folder = Path(demo_model_path(task))
    assert sum(p.stat().st_size for p in folder.iterdir()) < 1.5e6
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    set_seed(0)
    assert 0.18 < accuracy(model, tokenizer, task=task, greedy=False) < 0.35
    # what it prefers is wrong: there is something to learn, not only something to be surer of
    assert 0.05 < accuracy(model, tokenizer, task=task, greedy=True) < 0.25
