"""The model card, its plots and table of settings, and the recipe beside it."""

import json
import re
from dataclasses import dataclass, field, fields

import pytest
import torch
import yaml
from custom_functions import args_of
from hub_helpers import SECRET
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from segment_helpers import TREE, steps_of
from trl import GRPOConfig

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.cli import training
from trl_credit.hub import TrainingData, publishable, write_model_card
from trl_credit.hub.card import read_evaluation
from trl_credit.hub.describe import EIGHTY_TWENTY, PARTS, Setting, describe_credit, papers_of
from trl_credit.hub.public import Public, escape
from trl_credit.hub.recipe import PRIVATE, PUBLIC_TEXT, TRL_FIELDS, changed
from trl_credit.observe.plots import PANELS, plot_credit, plot_rewards


@dataclass
class Choices:
    reward: str | None = None
    data_dir: str | None = None
    lora_r: int = 16


@pytest.fixture
def finished(make_trainer, tmp_path, monkeypatch):
    """A trainer after two steps, with secrets all around it, and its card."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", "wandb0123456789secret")

    def make(algo="s_trace", *, evaluation=None, data=None, command=None, **settings):
        trainer = make_trainer(algo, hub_token=SECRET, hub_model_id="me/x", **settings)
        trainer.train()
        trainer.save_model()
        if evaluation is not None:
            (tmp_path / "run" / "evaluation").mkdir()
            (tmp_path / "run" / "evaluation" / "evaluation.json").write_text(evaluation)
            table = "# Scores\n\n| set |\n|---|\n| 61.2 <b> |\n\n" + r"\<i> \\<u> ![a](b) \![c](d) \\![e](f)"
            (tmp_path / "run" / "evaluation" / "evaluation.md").write_text(table)
        choices = Choices(reward=f"{tmp_path}/mine.py:score", data_dir="/home/someone/data", lora_r=8)
        more = {"data": data, "choices": (choices,), "recipe": {"algo": algo}, "command": command}
        path = write_model_card(trainer, name="S-trace", **more)
        return trainer, ModelCard.load(path)

    return make


def test_the_card_has_its_sections(finished, tmp_path):
    data = TrainingData("gsm8k", 7473, hub_id="openai/gsm8k", revision="e53f048", cleaning="3 rows without an answer")
    _, card = finished(data=data, command=["accelerate", "launch", "examples/train.py"])
    text = card.text
    heads = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("#")]
    assert heads[1:] == ["Credit", "Training", "Recipe", "Command", "Curves", "Versions", "Citations"]
    assert "| weight W | selector | entropy |  |\n| weight W | selective\\_rate | 0.2 |  |\n" in text
    where = "[on the Hub](https://huggingface.co/datasets/openai/gsm8k)"
    assert f"* Prompts: gsm8k ({where}), revision e53f048, 7,473 rows.\n" in text
    assert "3 rows without an answer" in text and "* 2 optimizer steps, 4 responses per prompt; a resp" in text
    assert "* 1 update for each generation batch of 8 rows.\n" in text
    assert "\n\n```bash\naccelerate launch examples/train.py --config recipe.yaml\n```\n" in text
    # the settings are those that the run had in the end, from whichever files
    shown = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1])
    assert list(shown)[:3] == ["algo", "reward", "lora_r"] and shown["max_steps"] == 2
    assert not {"config", "hub_token", "output_dir"} & set(shown)
    assert "![How credit was assigned, by optimizer step](credit_plot.png)" in text
    assert (tmp_path / "run" / "credit_plot.png").read_bytes().startswith(b"\x89PNG")
    assert f"* torch {torch.__version__}" in text and "from_pretrained('me/x')" in text
    assert card.data.datasets == ["openai/gsm8k"] and "s-trace" in card.data.tags and card.data.model_name == "x"
    assert "licence" not in card.data.to_dict() and "\n\n\n" not in text


def test_no_secret_and_no_path_of_this_machine(finished, tmp_path):
    # a server, a nested option, a report: places that a token may hide in
    data = TrainingData(f"{tmp_path}/x.jsonl", 1, cleaning=f"loaded with {SECRET} and wandb0123456789secret")
    options = {"chat_template_kwargs": {"key": "hf_anotherTokenOfSomebody123", "api_key": "unknown"}}
    options |= {"model_init_kwargs": {"token": SECRET, "revision": SECRET}, "command": [f"{tmp_path}/train.py"]}
    finished(data=data, **options)
    for name in publishable(tmp_path / "run"):
        content = (tmp_path / "run" / name).read_bytes()
        for secret in (SECRET, "wandb0123456789secret", "hf_anotherTokenOfSomebody123", str(tmp_path), "/home/someone"):
            assert secret.encode() not in content, (name, secret)
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert recipe["reward"] == "mine.py:score" and recipe["lora_r"] == 8
    assert recipe["model_init_kwargs"] == {"revision": "(removed)"}
    assert recipe["chat_template_kwargs"] == {"key": "(removed)"}
    assert not {"hub_token", "hub_model_id", "output_dir", "report_to", "data_dir", "disable_tqdm"} & set(recipe)


def test_evaluation_becomes_a_table_and_a_model_index(finished):
    def row(model, value, **more):
        scores = {"pass@1": {"value": value, "low": 0.5, "high": 0.7}, "bad": {"value": float("nan")}}
        return {"model": model, "revision": None, "set": "math500", "protocol": "avg@4", "metrics": scores} | more

    rows = [row("Qwen/Qwen3-1.7B", 0.5), row("checkpoint-1", 0.55), row("checkpoint-2", 0.612)]
    strictly = {"pass@1": {"value": 0.1, "low": 0.0, "high": 0.3}}
    rows.append(row("checkpoint-2", 0.2, set="aime24", metrics_strict=strictly))
    _, card = finished(evaluation=json.dumps({"version": 1, "rows": rows}))
    assert "## Evaluation\n\n### Scores\n\n| set |\n|---|\n| 61.2 &lt;b> |" in card.text
    # a backslash before an entity would show the entity's name, and two before "!" would make a picture
    assert r"&lt;i> \\&lt;u> \![a](b) \![c](d) \\\![e](f)" in card.text
    assert {(r.metric_type, r.dataset_config) for r in card.data.eval_results} == {("pass@1", "avg@4")}
    results = {(r.dataset_name, r.metric_name): r.metric_value for r in card.data.eval_results}
    of_aime = {("aime24", "pass@1 (permissive)"): 0.2, ("aime24", "pass@1 (strict)"): 0.1}
    assert results == of_aime | {("math500", "pass@1"): 0.612}
    assert card.data.to_dict()["model-index"][0]["name"] == "x"


@pytest.mark.parametrize("content", ["[]", '{"rows": [{"model": "x"}]}', "[" * 100_000])
def test_a_damaged_evaluation_costs_only_its_section(tmp_path, caplog, content):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "evaluation.json").write_text(content)
    assert read_evaluation(tmp_path, {"x"}, Public()) == ("", [])
    assert "evaluation.json was not written by trl_credit" in caplog.text


def test_text_from_outside_is_text(finished):
    hostile = "a<script>alert(1)</script>\n# b [c](http://d) `e` | ![f](g) {{ trainer }}"
    _, card = finished(data=TrainingData(hostile, 1, hub_id="../../x", cleaning="```\n<script>\n# no head"))
    assert "<script>alert" not in card.text and "\n# b" not in card.text and escape(hostile) in card.text
    assert "\\[c\\](http://d) \\`e\\` \\| \\!\\[f\\]" in card.text and "{{ trainer }}" in card.text
    assert "````text\n```\n<script>\n# no head\n````" in card.text  # inside a block that it cannot leave
    assert card.data.datasets is None and "huggingface.co/datasets" not in card.text


def test_a_teacher_is_named_and_its_prompt_stays_in_its_place(finished):
    prompt = "{prompt}\n# b `c` ```\n<script>alert(1)</script> | {answer}"
    _, card = finished("rlsd", teacher_prompt=prompt, max_steps=1)
    recipe = re.search(r"^````yaml\n(.*?)^````$", card.text, re.MULTILINE | re.DOTALL)
    outside = card.text.replace(recipe[0], "")
    assert yaml.safe_load(recipe[1])["teacher_prompt"] == prompt
    assert f"| teacher\\_prompt | {escape(prompt)} |" in outside
    assert "<script>" not in outside and "\n# b" not in outside
    teacher = "ℓᵀ: log-probability of a token under the teacher: a copy of the policy, renewed every 20 optimizer steps"
    assert f"\n{teacher}, which sees {escape(repr(prompt))}.\n" in outside


CITED = [
    ("s_trace", {"difficulty": "history"}, ["2605.05965", "2601.08521", "2402.03300"]),
    ("grpo", {"top_entropy_quantile": 0.2}, [EIGHTY_TWENTY["id"], "2402.03300"]),
    ("grpo_lambda", {"baseline": "optimal"}, ["2510.00194", "2505.23585", "2402.03300"]),
    ("spo_tree", {"importance": "sequence_token"}, ["2507.18071", "2505.23564", "2503.14476", "2402.03300"]),
]


@pytest.mark.parametrize(("algo", "knobs", "arxiv"), CITED)
def test_every_knob_in_use_is_cited(algo, knobs, arxiv, tmp_path):
    args = ALGORITHMS[algo][0](output_dir=str(tmp_path), **knobs)
    assert [paper["id"] for paper in papers_of(args)] == arxiv


# The recipe


@dataclass
class Own:
    steps: int = 1
    weights: list = field(default_factory=list)
    note: str = ""
    choice: str = field(default="", metadata={"public": True})


def test_only_declared_fields_get_into_a_recipe(tmp_path):
    assert changed(Own(2, [0.5], "n", "c")) == {"steps": 2, "weights": [0.5], "choice": "c"}
    assert changed(Own(weights=["text"])) == {}
    settings = {"run_name": "a", "hub_model_id": "b", "disable_tqdm": True, "logging_steps": 5, "ddp_timeout": 9}
    assert changed(CreditConfig(str(tmp_path), report_to="none", **settings)) == {"logging_steps": 5}


def test_every_field_of_trl_that_may_hold_text_is_declared_public_or_left_out():
    """A new one has to be added to `PUBLIC_TEXT` or here."""
    left_out = re.compile(
        r"(output|logging)_dir|run_name|report_to|project|trackio_\w+|hub_\w+|log_level\w*|"
        r"ddp_backend|resume_from_checkpoint|vllm_server_\w+|activation_checkpointing_kwargs"
    )
    number = "(int|float|bool)"
    numbers = re.compile(rf"{number}( \| ({number}|None))*|<class '{number}'>|list\[float\]( \| None)?")
    texts = {f.name for f in fields(GRPOConfig) if not numbers.fullmatch(str(f.type))}
    assert not [name for name in texts if name not in PUBLIC_TEXT and not left_out.fullmatch(name)]
    assert not [name for name in PUBLIC_TEXT | (TRL_FIELDS - PRIVATE - texts) if left_out.fullmatch(name)]


def test_the_recipe_of_a_run_from_python_on_a_folder_is_not_taken_for_one_of_the_embedded_model(make_trainer, tmp_path):
    write_model_card(make_trainer("s_trace", max_steps=1), name="S-trace")
    recipe = tmp_path / "run" / "recipe.yaml"
    assert yaml.safe_load(recipe.read_text())["model_name_or_path"] == "a local folder"
    with pytest.raises(ValueError, match="model_name_or_path='a local folder' has no data to train on: set --dataset"):
        training.build(["--config", str(recipe), "--output_dir", str(tmp_path / "again")], command=["trl-credit"])


# The plots: what of the logs is drawn, and on which axes


@pytest.fixture
def figures(monkeypatch):
    """All figures that are drawn."""
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawn.append(self) or draw(self, renderer))
    return drawn


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def drawn(figures, path, **metrics):
    logs = [{"step": step} | {f"credit/{name}": x for name, x in metrics.items()} for step in (1, 2, 3)]
    names = plot_credit(logs, path / "c.png", title="t")
    return names, figures[-1].axes if names else []


def test_the_axes_and_the_legends(tmp_path, figures):
    for value, end in ((1.0, 1.1), (0.0013, 0.00143), (0.0, 1.0)):
        names, (axes,) = drawn(figures, tmp_path, clip_fraction=value)
        assert axes.get_ylim() == pytest.approx((0, end)) and axes.get_legend() is None
    names, (axes,) = drawn(figures, tmp_path, **{"difficulty_weight/harder_positive": 1.2})
    assert legend(axes) == ["harder positive"] and axes.get_title() == "difficulty weight"
    names, (axes,) = drawn(figures, tmp_path, **{"clip_fraction": 0.1, "clip_fraction/response_mean": 0.2})
    assert legend(axes) == ["all", "response mean"]
    # metrics that have nothing to report
    idle = {"rollout_token_share": 1.0, "kept_fraction": 1.0, "rows_missing": 0.0, "replay/age": 0.0}
    assert drawn(figures, tmp_path, **idle)[0] == []
    assert drawn(figures, tmp_path, rollout_token_share=0.7)[0] == ["rollout_token_share"]
    tenths = {f"coefficient/entropy_decile_{d}": 1.0 + d for d in range(10)}
    names, (axes,) = drawn(figures, tmp_path, **tenths)
    assert names == list(tenths) and len({tuple(line.get_color()) for line in axes.lines}) == 10
    assert legend(axes)[:10:3] == [f"entropy decile {d}" for d in (0, 3, 6, 9)]


def test_every_panel_in_its_order_and_what_no_panel_names_after_them(tmp_path, figures):
    metrics = {"a_new_one": 10.0, "seconds/train": 1.0, "effective_horizon": 3.0, "abs_advantage": 0.5, "mine/x": 2.0}
    metrics |= dict.fromkeys(reversed(PANELS), 0.5)
    names, panels = drawn(figures, tmp_path, **metrics)
    assert names == [*PANELS, "a_new_one", "mine/x"] and len(panels) == len(names)
    for begin, axes in zip(names, panels, strict=True):
        assert axes.get_xlabel().replace("\n", " ") == f"optimizer step {PANELS.get(begin, '')}".strip()


def test_the_band_of_the_reward_stays_in_its_range(finished_run, tmp_path, figures):
    log = finished_run("s_trace").trainer.state.log_history
    rows = [row for row in log if "reward" in row]
    assert all(0 <= row["reward_min"] <= row["reward"] <= row["reward_max"] <= 1 for row in rows)
    row = {"step": 1, "reward": 0.9, "reward_std": 0.3}
    plot_rewards([row | {"reward_min": 0.0, "reward_max": 1.0}], tmp_path / "r.png", title="t")
    heights = figures[-1].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.6) and heights.max() == 1.0
    assert plot_rewards([row], tmp_path / "r.png", title="t") == (0.9, 0.9)


# The table: which settings are shown


def described(algo, **settings):
    sizes = {"per_device_train_batch_size": 8, "num_generations": 8}
    return describe_credit(args_of(ALGORITHMS[algo][0], **sizes | settings))


def shown(algo, **settings):
    """Name → value of the rows of a configuration, and name → the preset's value where it is another one."""
    rows = described(algo, **settings)
    return {row.name: row.value for row in rows}, {row.name: row.published for row in rows if row.published}


@pytest.mark.parametrize("form", ["nodes", "paths"])
def test_the_nodes_that_were_trained_on(make_trainer, form):
    trainer = make_trainer(**{**TREE, "max_steps": 1}, tree_rows=form)
    trees, grow = [], trainer.forest._new_rows
    trainer.forest._new_rows = lambda grown: trees.extend(grown) or grow(grown)
    trainer.train()
    (row,) = steps_of(trainer)
    credited = [node for tree in trees for node in tree.root.walk()[1:] if node.advantage]
    assert len(credited) <= 16 and row["credit/nodes_trained"] == len(credited) < row["credit/nodes"]
    assert (row["credit/rows"] < len(credited)) == (form == "paths")


def test_every_part_of_credit_has_its_settings():
    rows = described("s_trace", selective_rate=0.1, beta=0.2, top_entropy_quantile=0.5)
    parts = [row.part for row in rows]
    assert list(dict.fromkeys(parts)) == list(PARTS) and parts == sorted(parts, key=list(PARTS).index)
    assert Setting("weight W", "selective_rate", "0.1", "0.2") in rows
    assert Setting("loss", "beta", "0.2", "0.001") in rows and Setting("mask M", "token_mask", "none") in rows
    assert Setting("mask M", "top_entropy_quantile", "0.5", "1") in rows


ACTING = [
    ("spo_chain", {"cutpoint_interval": 7, "probability_threshold": 0.8}, {"num_segments", "segment_length"}),
    ("vine_ppo", {"step_splitter": "gsm8k"}, {"cutpoint_interval", "num_segments", "segment_length"}),
    ("spo_tree", {"tree_branching": [4, 2], "replay_cap": None}, {"scale_rewards", "segmentation"}),
    ("spo_tree", {"process_reward_weight": 0.5, "process_reward_best_of": 4}, {"segmentation"}),
    ("grpo", {"baseline": "optimal"}, {"scale_rewards", "segmentation"}),
    ("spo_chain", {"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "none"}, {"clip_form"}),
    ("grpo_lambda", {"importance": "token", "loss_weight": "trace_past"}, {"selective_rate"}),
]


@pytest.mark.parametrize(("algo", "settings", "absent"), ACTING)
def test_settings_that_act_are_shown_with_the_presets_value(algo, settings, absent):
    values, published = shown(algo, **settings)
    texts = {"None": "–", "[4, 2]": "4, 2"}
    for name, value in settings.items():
        assert values[name] == texts.get(str(value), str(value)), name
    assert not absent & set(values)
    default, nothing = shown(algo)
    assert set(published) == set(settings) and nothing == {}
    assert all(published[name] == default[name] for name in set(settings) & set(default))
