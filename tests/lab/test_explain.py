"""What each algorithm would do: credit on the same responses, against closed forms and against what training logged."""

import json
import re
from datetime import date
from functools import partial

import pytest
import torch
from conftest import count_a
from custom_functions import args_of, custom
from data_helpers import write
from datasets import Dataset
from script_helpers import error_of
from torch.nn.utils.rnn import pad_sequence
from turn_helpers import TURN_FORMS, conversations
from viewer_helpers import Page

from trl_credit import ALGORITHMS
from trl_credit.cli import main
from trl_credit.demo import demo_model_path
from trl_credit.lab.explain import explain, markdown_table, read_rollouts
from trl_credit.lab.explain.table import COLUMNS, rows_of
from trl_credit.observe import rollout_log
from trl_credit.rewards import accuracy_reward, format_reward
from trl_credit.support.functions import resolve_function


PLAIN = [name for name in ALGORITHMS if name not in ("spo_chain", "spo_tree", "vine_ppo")]


def rows(n=4, length=6, **more):
    g = torch.Generator().manual_seed(0)
    responses = []
    for i in range(n):
        size = length - i % 2
        logps = (-2 * torch.rand(size, generator=g)).tolist()
        row = {"prompt": f"{i // 2}+1=", "completion": "abcdef"[:size], "reward": float(i % 2), "logprobs": logps}
        row |= {"tokens": list("abcdef"[:size]), "old_logprobs": [x - 0.1 * (k % 3) for k, x in enumerate(logps)]}
        row |= {"teacher_logprobs": [0.9 * x for x in logps], "entropy": torch.rand(size, generator=g).tolist()}
        responses.append(row | more)
    return responses


@pytest.fixture
def printed(capsys):
    """What `trl-credit explain` prints."""

    def run(*argv):
        assert main(["explain", *map(str, argv)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def rollouts(tmp_path):
    return lambda content=None: write(tmp_path / "rollouts.jsonl", rows() if content is None else content)


def config_of(name, **settings):
    return args_of(ALGORITHMS[name][0], **settings)


def test_truncated_responses_are_unassigned_where_the_algorithm_leaves_them_out(rollouts):
    content = rows()
    content[0]["truncated"] = True
    shard = read_rollouts(rollouts(content))
    dapo = explain(shard, config_of("dapo"), name="DAPO").shard.responses
    assert not any(dapo[0]["policy_mask"]) and not any(dapo[0]["credit"]) and any(dapo[1]["credit"])
    assert any(explain(shard, config_of("grpo"), name="GRPO").shard.responses[0]["credit"])


def test_turns_are_told_apart_by_their_numbers(rollouts):
    """Two turns without a token between them: W is the mean of ℓ − ℓ° over each."""
    more = {"tokens": list("abcd"), "logprobs": [-1.0, -2.0, -1.0, -1.0], "old_logprobs": [-1.1, -2.1, -1.3, -1.4]}
    more |= {"completion": "abcd", "entropy": [1.0] * 4, "teacher_logprobs": None, "turn_ids": [0, 0, 1, 1]}
    explained = explain(read_rollouts(rollouts(rows(n=2, **more))), args_of(importance="turn"), name="turn")
    assert explained.shard.responses[0]["log_weight"] == pytest.approx([0.1, 0.1, 0.35, 0.35])


LACKING = [
    ("s_trace", {}, {"entropy": None}, "give --model"),
    ("ha_dw", {}, {"reward": 3.0}, "rewards lie outside of 0 to 1"),
    ("grpo", {"td_upper_bound": True}, {}, "td_upper_bound"),
    ("sdpo", {}, {"teacher_logprobs": None}, "explain a run that had a teacher and --log_credit"),
]


@pytest.mark.parametrize(("algo", "settings", "changed", "message"), LACKING)
def test_responses_that_lack_something_are_refused(rollouts, algo, settings, changed, message):
    shard = read_rollouts(rollouts([row | changed for row in rows()]))
    with pytest.raises(ValueError, match=message):
        explain(shard, config_of(algo, **settings), name="x")


def test_the_table(rollouts):
    shard = read_rollouts(rollouts())
    explained = [explain(shard, config_of(name), name=name) for name in PLAIN]
    grpo, trace = (explained[PLAIN.index(name)] for name in ("grpo", "s_trace"))
    assert grpo.horizon == 0.0 and trace.horizon > 0.3
    shown = trace.shard.header
    assert shown["settings"]["selector"] == "entropy" and shown["trace_decay"] == 0.9
    assert "selector" not in grpo.shard.header["settings"]
    text = markdown_table(explained, grpo=grpo)
    by_name = {line.split(" | ")[0].strip("| "): line.rstrip("| ") for line in text.splitlines()}
    assert by_name["grpo"].endswith("| 1.00") and by_name["gspo"].count("whole response") == 1
    assert "ha_dw: belief 0.50." in text
    for name in PLAIN:
        cells = [cell.strip() for cell in by_name[name].strip("|").split("|")]
        quarters = [int(cell.rstrip("%")) for cell in cells[2:6]]
        assert len(cells) == 12 and abs(sum(quarters) - 100) <= 2


def test_the_command_on_a_file(rollouts, tmp_path, printed):
    text = printed(rollouts(rows(answer=2)), "--credit", custom("half_decay"))
    page = (tmp_path / "rollouts.explain.html").read_text()
    assert (tmp_path / "rollouts.explain.md").read_text().startswith("| algorithm  ")
    for name in ("GRPO", "S-trace", "GSPO-token", "half_decay on GRPO"):
        assert f"| {name} " in text and name in page
    assert "on the 20 % of highest entropy" in page and "SPO-chain is left out: " in page
    shown = Page(page).data["shards"][0]
    assert shown["header"]["step"] is None and {row["answer"] for row in shown["responses"]} == {"2"}
    assert "give --model NAME and --reward FILE.py:FUNCTION." in text and "SPO-tree is left out: " in text


def test_a_line_says_where_the_teacher_differs(rollouts, printed):
    content = rows(n=2, length=5)  # a wrong response of five tokens, the last outside of the loss, and a right one
    for row, gap in zip(content, ([-4.0, 1.0, -2.0, -1.0, 9.0], [-2.0, 1.0, 1.0, None]), strict=True):
        row |= {"prompt": "1+1=", "loss_mask": [int(x != 9.0) for x in gap], "entropy": [1.0] + [0.1] * (len(gap) - 1)}
        row["logprobs"] = row["old_logprobs"] = [-10.0] * len(gap)
        row["teacher_logprobs"] = [None if x is None else x - 10.0 for x in gap]
    path = rollouts(content)
    text = printed(path, "--algo", "grpo", "rlsd")
    where = "d > 0 at 67% of tokens in responses above the mean reward of their group, and at 25% below it."
    assert f"50% of |d| lies on the 20 % of tokens with the highest entropy. {where}" in text
    shard = read_rollouts(path)
    credits = [explain(shard, config_of(name), name="x").shard.responses[1]["credit"] for name in ("rlsd", "grpo")]
    assert [a / b for a, b in zip(*credits, strict=True)] == pytest.approx([0.9, 1.1, 1.1, 1.0])  # 1 where unknown


def test_the_command_with_a_model_computes_what_is_missing(rollouts, printed, capsys):
    row = {"prompt": "1+1=", "answer": "2"}
    path = rollouts([{**row, "completion": "ab ab ab"[: 2 + 2 * i], "reward": float(i % 2)} for i in range(4)])
    assert "lacks log-probabilities" in error_of(main, ["explain", path], capsys)
    words = [path, "--model", demo_model_path(), "--algo", "s_trace", "spo_chain", "grpo"]
    text = printed(*words, "--reward", custom("even"))
    assert "| SPO-chain " in text and "left out" not in text


DAMAGED = [
    ("{", ":1 is not JSON"),
    ('{"prompt": 1, "completion": "b", "reward": 1}', ":1: prompt"),
    ('{"prompt": "a", "completion": "b", "reward": null}', "has no reward"),
    ('{"prompt": "a", "completion": "b", "reward": 1, "logprobs": [0.5]}', "logprobs must be at most 0"),
    ('{"prompt": "a", "completion": "b", "reward": 1, "logprobs": [-1], "entropy": [1, 2]}', "logprobs has 1"),
    ('{"prompt": "a", "completion": "b", "reward": 1, "logprobs": [-1]}', "no two responses to one prompt"),
]


@pytest.mark.parametrize(("line", "message"), DAMAGED)
def test_damaged_rollouts_are_refused_with_their_line(tmp_path, capsys, line, message):
    (tmp_path / "x.jsonl").write_text(line)
    assert message in error_of(main, ["explain", tmp_path / "x.jsonl"], capsys)


def test_a_class_has_settings(rollouts, printed, command_said):
    name = custom("Times")
    text = printed(rollouts(), "--algo", "grpo", "--credit", name, f"{name} --factor -1", f"s_trace+{name} --factor=2")
    last = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in text.splitlines()}
    assert last["Times on GRPO"] == "1.00" == last["Times on S-trace, factor=2.0"]
    assert float(last["Times on GRPO, factor=-1.0"]) < 0
    code, out, error = command_said("explain", rollouts(), "--algo", "s_trace", "--credit", f"{name} --facto 2")
    assert code == 2 and "unknown flag '--facto': did you mean '--factor'?" in error and not out


def test_a_run_is_shown_as_it_was_trained_and_its_log_probabilities_stay(make_trainer, tmp_path, printed):
    trainer = make_trainer("s_trace", selective_rate=0.6, log_credit=1, max_steps=1, temperature=1.3)
    trainer.train()
    logged = read_rollouts(tmp_path / "run")
    trainer.save_model()
    words = [tmp_path / "run", "--algo", "s_trace", "spo_chain", "--model", tmp_path / "run"]
    path = next((tmp_path / "run" / "credit_log").glob("*.jsonl"))
    old = re.sub('"columns": {.*?}, ', "", path.read_text())
    path.write_text(old)  # a log of 0.2.0 whose reward function got another answer
    text = printed(*words, "--reward", custom("even"))
    assert "the reward needs 'answer', which these rollouts do not hold" in text
    path.write_text(old.replace('"groups_total"', '"has_answer_column": true, "groups_total"'))
    assert re.search(r"^\| SPO-chain +\|", printed(*words, "--reward", custom("even")), re.MULTILINE)
    text = " ".join(printed(*words, "--reward", custom("lacking")).split())
    assert "| S-trace, as trained | " in text and "| S-trace | " in text
    assert "the reward needs 'truth', which these rollouts do not hold: give them as JSONL with that field." in text
    text = printed(*words[:-1], demo_model_path(), "--reward", custom("even"))
    assert "SPO-chain is left out: the responses have token ids that the model lacks" in text
    as_it_was = explain(logged, trainer.args, name="x").shard.responses
    assert [r["log_weight"] for r in as_it_was] == [r["log_weight"] for r in logged.responses]


@pytest.fixture
def explained(make_trainer, printed, here):
    """Trains in Python, and explains the run: what the command says of SPO-chain."""

    def run(*words, rewards=(), data=None, **settings):
        if rewards:
            more = {"trainer_kwargs": {"train_dataset": data}} if data else {}
            trainer = make_trainer("s_trace", max_steps=1, reward_funcs=rewards, **more, **settings)
            trainer.train()
            trainer.save_model()
        text = printed("run", "--algo", "grpo", "spo_chain", *words)
        return next(line for line in text.splitlines() if "SPO-chain" in line)

    return run


def test_a_run_from_python_is_scored_by_its_own_rewards(explained, here):
    (here / "mine.py").write_text("def by_level(completions, level, **kwargs): return level")
    by_level = resolve_function("mine.py:by_level", what="reward", known=())
    data = Dataset.from_dict({"prompt": ["1+1=", "1+2="] * 4, "level": [3, 4] * 4, "day": [date(2026, 1, 1)] * 8})
    line = explained(rewards=[by_level, format_reward], data=data, log_credit=1, reward_weights=[1.0, 0.0])
    trusted = "if you trust it, `trl-credit explain run --model run --trust_run`, or name a function yourself"
    assert f"'run' names the reward {here}/mine.py:by_level, and" in line and trusted in line
    assert explained("--model", "run", "--trust_run").startswith("| SPO-chain ")
    assert "needs 'answer', which" in explained("--model", "run", "--reward", "accuracy")  # with the weight of no other
    response = read_rollouts("run").responses[0]
    assert response["columns"] == {"prompt": response["prompt"], "level": int(response["prompt"][2]) + 2}
    record = json.loads((here / "run" / "credit_run.json").read_text())
    record["identity"]["tools"] = {"search": "SHA-256 0"}
    (here / "run" / "credit_run.json").write_text(json.dumps(record))
    assert "the run's tools or environments are not known here" in explained("--model", "run", "--trust_run")


def test_built_in_rewards_of_a_run_need_no_trust_and_others_are_named(explained):
    assert explained(rewards=[accuracy_reward], log_credit=1).endswith("give --model run.")
    assert explained("--model", "run").startswith("| SPO-chain ")
    own = lambda completions, **kwargs: [*map(len, completions)]  # noqa: E731
    line = explained(rewards=own, log_credit=1, overwrite_output_dir=True)
    assert "give --model run and --reward FILE.py:FUNCTION (only the run's script knows <lambda>)." in line


def test_a_run_from_python_without_a_log_repeats_its_script(make_trainer, here, command_said):
    make_trainer("s_trace", max_steps=1).train()
    code, _, error = command_said("explain", "run")
    fix = "repeat its script with model='run', max_steps=1, log_credit=1 and another output_dir"
    assert code == 2 and f"run has no rollout log: to log a step of its model, {fix}" in error


def test_what_a_model_cannot_read_is_refused(rollouts, printed, command_said):
    def sources(**changed):
        content = [{"prompt": "1+1=", "completion": "ab"[i:], "reward": float(i), "answer": "2"} for i in range(2)]
        return [rollouts([row | changed for row in content]), "--model", demo_model_path()]

    code, _, error = command_said("explain", *sources(token_ids=[1, 999999]))
    assert code == 2 and "token id 999999" in error.splitlines()[-1]
    text = printed(*sources(), "--algo", "grpo", "spo_chain", "--reward", custom("nobody"))
    assert "SPO-chain is left out: reward function " in text and "no judge" in text


# The rollout log of a run gives the credit that the run gave


GRAD = {"importance": "token", "loss_weight": "trace_past", "loss_weight_confidence": "sigmoid_grad"}
RATIO = {"clip_form": "ratio", "use_bias_correction_kl": False}  # which clips whatever the sign of A
WIDE = {"epsilon": 0.2, "epsilon_high": 0.2}  # or all responses are clipped
OWN = {
    "gspo": WIDE,
    "gspo_token": WIDE,
    "clip_cov": {"cov_share": 0.2, "cov_range": [0.0, 9.0]},
    "kl_cov": {"cov_share": 0.2},
    "spo_chain": {"rollouts_per_state": 2},
    "vine_ppo": {"rollouts_per_state": 2},
}
TALK = {"trainer_kwargs": {"rollout_func": conversations}, "max_completion_length": 16, "loss_type": "grpo"}
QUICK = [("base", TALK | TURN_FORMS["p_trace"])]
QUICK += [(name, OWN.get(name, {})) for name in ("grpo", "s_trace", "fipo", "kl_cov", "ha_dw", "spo_chain")]


def letters(completions, **kwargs):
    return [sum(map(ord, text)) % 5 / 4 for text in completions]


@pytest.fixture
def logged(make_trainer, monkeypatch):
    """Trains two updates on each of two batches; returns the trainer and its shards with all digits."""

    def run(algo, **settings):
        shards = []
        monkeypatch.setattr(rollout_log, "write_shard", lambda path, shard: shards.append(shard))
        settings = {"reward_funcs": letters, "num_iterations": 2, "max_steps": 4, "temperature": 1.3} | settings
        trainer = make_trainer(algo, log_credit=1, log_credit_groups=8, **settings)
        trainer.train()
        assert [shard.header["step"] for shard in shards] == [1, 2, 3, 4]
        return trainer, shards

    return run


def check_explained(trainer, shards):
    """Checks that explain gives what the run logged, and that the run had something to give."""
    for shard in shards:
        segments = None
        if trainer.args.rollouts == "chain":
            pad = partial(pad_sequence, batch_first=True)
            advantages = pad([torch.tensor(r["advantages"]).double() for r in shard.responses])
            segments = advantages, pad([torch.tensor(r["segment_ids"]) for r in shard.responses], padding_value=-1)
        explained = explain(shard, trainer.args, name="again", segments=segments)
        columns = dict.fromkeys(("advantages", "log_weight", "credit"), ((), ()))
        for left, right in zip(shard.responses, explained.shard.responses, strict=True):
            assert all(left[name] == right[name] for name in ("policy_mask", "is_clipped", "selected"))
            for name, (known, again) in columns.items():
                inside = ([x for x, m in zip(row[name], left["loss_mask"], strict=True) if m] for row in (left, right))
                columns[name] = (*known, *next(inside)), (*again, *next(inside))
        for name, (known, again) in columns.items():
            assert known == pytest.approx(again, rel=1e-5, abs=1e-5 * max(1.0, *map(abs, known))), name
    rows = [row for shard in shards for row in shard.responses]
    assert any(any(row["credit"]) for row in rows)
    assert trainer.contract.algorithm.carries_loss or any(any(row["log_weight"]) for row in rows)
    return explained


RUNS = [
    pytest.param(algo, settings, marks=() if (algo, settings) in QUICK else pytest.mark.slow)
    for algo, settings in (
        # rows of trees are parts of responses, which explain refuses
        *((name, OWN.get(name, {})) for name in ALGORITHMS if name != "spo_tree"),
        *(("grpo_lambda", own) for own in (RATIO, {"trace_style": "both"}, GRAD)),
        *(("base", {"loss_type": kind}) for kind in ("sapo", "vespo")),
        ("base", {"top_entropy_quantile": 0.4}),
        *(("base", TALK | form) for form in TURN_FORMS.values()),
        ("ha_dw", {"reward_funcs": [letters, count_a], "difficulty_reward": ["count_a"]}),
        ("base", {"loss_type": "cispo", "epsilon_high": 1.1}),
        ("base", {"delta": 1.1}),
        ("base", {"rollouts": "chain", "rollouts_per_state": 2, "policy_loss": "policy_iteration", "beta": 0.1}),
    )
]


@pytest.mark.parametrize(
    ("algo", "settings"),
    RUNS,
    ids=lambda value: value if isinstance(value, str) else "-".join(name for name in value if name not in TALK),
)
def test_it_is_the_credit_that_the_run_logged(logged, algo, settings):
    trainer, shards = logged(algo, **settings)
    explained = check_explained(trainer, shards)
    (cells,) = rows_of([explained], grpo=None)
    shown, row = dict(zip(COLUMNS, cells, strict=True)), trainer.state.log_history[-2]
    if trainer.args.has_trace:
        assert explained.horizon == pytest.approx(row["credit/effective_horizon"], rel=1e-4) and explained.horizon > 0.3
    if trainer.args.importance == "turn":
        assert explained.horizon is None
    for column, name in (("noise share", "noise_share"), ("last tokens' share", "last_tokens_share")):
        assert float(shown[column]) == pytest.approx(row[f"credit/{name}"], abs=0.0051)
    if algo == "ha_dw" and not settings:  # the run's belief, not the accuracy of these responses
        rewards = [row["reward"] for row in shards[-1].responses]
        assert abs(shards[-1].header["difficulty_belief"] - sum(rewards) / len(rewards)) > 0.05


def test_a_loss_is_not_shown_as_an_advantage(logged):
    """ρ·A − (ln ρ)²/10 as minus a loss: A stays that of the group, and the credit is ρ·A − ln ρ / 5."""
    trainer, shards = logged("base", credit=custom("weighted_kl"))
    check_explained(trainer, shards)
    for row in shards[1].responses:
        rewards = torch.tensor([other["reward"] for other in shards[1].responses if other["group"] == row["group"]])
        advantage = ((row["reward"] - rewards.mean()) / (rewards.std() + 1e-4)).item()
        assert row["advantages"] == pytest.approx([advantage] * len(row["tokens"]), abs=1e-5)
        log_ratio = torch.tensor(row["trainer_logprobs"]) - torch.tensor(row["old_logprobs"])
        assert row["credit"] == pytest.approx((log_ratio.exp() * advantage - log_ratio / 5).tolist(), abs=1e-5)
        assert not any(row["log_weight"]) and row["is_clipped"] is None
