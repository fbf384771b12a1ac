"""The teacher of a trainer: what it scores, what it sees, its copy of the policy, and what is refused."""

import math

import pytest
import torch
from datasets import Dataset
from passes_helpers import Watch
from peft import LoraConfig
from tiny_models import tiny_qwen3
from transformers import AutoModelForCausalLM

from trl_credit import Credit
from trl_credit.demo import demo_model_path
from trl_credit.loss import keys
from trl_credit.rollouts.sources import GenerationBatch


TOLD = "{prompt}{answer};"
ONE_LONG = Dataset.from_list([{"prompt": "1+1=", "answer": "2" * (5000 if i == 40 else 1)} for i in range(64)])


def scored(trainer, rows=None):
    """A generation batch, and ℓᵀ of its rows, shape (B, T)."""
    trainer.model.train()
    rows = [trainer.train_dataset[i // 4] for i in range(8)] if rows is None else rows
    batch = trainer.make_batch(rows).batch
    return batch, batch.data[keys.TEACHER_LOGPS]


@pytest.fixture
def sampled(make_trainer):
    """A trainer, a generation batch of it, and ℓᵀ of its rows."""

    def make(*args, **settings):
        trainer = make_trainer(*args, **settings)
        return trainer, *scored(trainer)

    return make


@torch.no_grad()
def by_hand(model, prompt_ids, completion_ids, *, temperature=1.0):
    """Log-probabilities of one response, by one plain pass."""
    logits = model(torch.tensor([[*prompt_ids, *completion_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    logp_t = (logits.double() / temperature).log_softmax(-1)
    return logp_t.gather(-1, torch.tensor(completion_ids)[:, None])[:, 0]


def check_rows(batch, teacher_t, model, prompts, **options):
    for ids, own, row_t in zip(prompts, batch.completion_ids, teacher_t, strict=True):
        if ids is None:
            assert row_t.isnan().all()
        else:
            expected = by_hand(model, ids, own, **options)
            torch.testing.assert_close(row_t[: len(own)].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared_prefix", ["off", "on"])
def test_a_teacher_in_a_context_scores_each_row_as_one_plain_pass(make_trainer, shared_prefix):
    """Prompts of several lengths, columns of the rows, and a row that lacks one."""
    pairs = (("1+2=", "3"), ("10+20=", None), ("7=", "12345678"))
    rows = [{"prompt": prompt, "answer": answer} for prompt, answer in pairs for _ in range(4)]
    data = Dataset.from_list(rows[::4])
    settings = {"teacher": "policy", "teacher_prompt": TOLD, "temperature": 1.3, "shared_prefix": shared_prefix}
    trainer = make_trainer("opd", trainer_kwargs={"train_dataset": data}, per_device_train_batch_size=4, **settings)
    batch, teacher_t = scored(trainer, rows)
    texts = [None if row["answer"] is None else TOLD.format(**row) for row in rows]
    prompts = [None if text is None else trainer.tokenizer(text)["input_ids"] for text in texts]
    check_rows(batch, teacher_t, trainer.model, prompts, temperature=1.3)
    assert trainer.teacher._passes.prefix.packs == (shared_prefix == "on")


@pytest.mark.parametrize("shared_prefix", ["off", "on"])
def test_the_same_weights_and_context_have_no_gap(make_trainer, shared_prefix):
    """To the last bit where both passes are packed, or neither is; a run shares prompts from its second batch on."""
    trainer = make_trainer("opd", teacher="reference", shared_prefix=shared_prefix)
    for is_first in (True, False):
        batch, teacher_t = scored(trainer)
        trainer._passes.shared([batch.data])  # as it cuts the batch
        trainer.engine.fill_old_logps(batch)
        gap_t = (teacher_t - batch.old_logp_t)[batch.mask_t.bool()]
        assert gap_t.abs().max() <= (1e-6 if is_first else 0.0)


def test_a_gap_opens_with_the_first_update(trained):
    first, second = (row for row in trained("opd").state.log_history if "credit/teacher/kl" in row)
    assert first["credit/teacher/kl"] == 0.0 != second["credit/teacher/kl"]


def test_a_second_model_scores_with_its_own_weights(sampled, make_trainer, tmp_path):
    torch.manual_seed(7)
    trainer = make_trainer("opd", teacher="reference")
    other = tiny_qwen3(trainer.tokenizer, layers=3)
    other.save_pretrained(tmp_path / "other")
    trainer.tokenizer.save_pretrained(tmp_path / "other")
    trainer, batch, teacher_t = sampled("opd", teacher=str(tmp_path / "other"), teacher_prompt=TOLD)
    texts = [TOLD.format(**trainer.train_dataset[i // 4]) for i in range(8)]
    check_rows(batch, teacher_t, other, [trainer.tokenizer(text)["input_ids"] for text in texts])
    before = [p.clone() for p in trainer.teacher._model.parameters()]
    trainer.train()
    assert all(map(torch.equal, before, trainer.teacher._model.parameters()))


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_reference_of_an_adapter_is_the_model_without_it(sampled, tiny_model, beta):
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    trainer, batch, teacher_t = sampled("opd", teacher="reference", beta=beta, trainer_kwargs={"peft_config": lora})
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    check_rows(batch, teacher_t, base, batch.prompt_ids)
    assert trainer.teacher._path() is None  # no second model


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(("sync", "rate"), [(2, 1.0), (1, 0.25)])
def test_a_copy_of_the_policy_is_renewed_and_leaves_the_policy_alone(make_trainer, monkeypatch, lora, sync, rate):
    """A copy is what the policy was; a moving average weighs earlier policies less."""
    adapter = LoraConfig(r=2, target_modules=["v_proj"], task_type="CAUSAL_LM") if lora else None
    settings = {"teacher": "policy", "teacher_prompt": TOLD, "max_steps": 5, "learning_rate": 0.05}
    trainer = make_trainer(
        "opd", teacher_sync_steps=sync, teacher_update_rate=rate, trainer_kwargs={"peft_config": adapter}, **settings
    )
    trained, copies, watch = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}, [], Watch(trainer)
    expected = [p.detach().clone() for p in trained.values()]
    score = trainer.teacher.score

    def watched(generation):
        before = [p.detach().clone() for p in trained.values()]
        score(generation)
        assert all(map(torch.equal, before, trained.values()))  # the pass gave the policy its weights back
        copies.append([x.clone() for x in trainer.teacher._copied()])

    monkeypatch.setattr(trainer.teacher, "score", watched)
    trainer.train()
    for n, (copy, policy) in enumerate(zip(copies, watch.parameters, strict=True), 1):
        assert all(map(torch.equal, copy, expected)), n
        if n % sync == 0:
            expected = [old.lerp(policy[name], rate) for old, name in zip(expected, trained, strict=True)]
    assert not all(map(torch.equal, expected, copies[0]))


def by_sum(prompts, completions, **kwargs):
    """1 for the responses with an even sum of character codes."""
    return [float(sum(map(ord, text)) % 2 == 0) for text in completions]


def test_a_right_response_of_the_group_is_never_the_rows_own(sampled):
    trainer, batch, teacher_t = sampled("sdpo", teacher_prompt="{prompt}<{success}>", reward_funcs=by_sum)
    texts = [trainer.engine.decode(ids) for ids in batch.completion_ids]
    seen = []
    for i in range(8):
        others = [k for k in range(i // 4 * 4, i // 4 * 4 + 4) if k != i and batch.correct[k] == 1.0]
        prompt = trainer.train_dataset[i // 4]["prompt"]
        seen.append(trainer.tokenizer(f"{prompt}<{texts[others[0]]}>")["input_ids"] if others else None)
    assert any(seen) and (batch.correct == 1.0).any()
    with trainer.teacher._active():
        check_rows(batch, teacher_t, trainer.model, seen)


def test_right_responses_that_the_loss_leaves_out_are_not_shown(sampled):
    """Two truncated rows and a whole one are right; groups may differ in size, as in logged responses."""
    trainer, batch, _ = sampled("sdpo", reward_funcs=by_sum)
    batch.correct = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, math.nan, 1.0])
    batch.written_t[:2] = 0
    texts = [trainer.engine.decode(ids) for ids in batch.completion_ids]
    for sizes, shown in (([4, 4], [2, 2, None, 2, 5, 7, 5, 5]), ([3, 5], [2, 2, None, 5, 5, 7, 5, 5])):
        prompts = torch.repeat_interleave(torch.arange(2), torch.tensor(sizes))
        generation = GenerationBatch(batch, batch.rewards, [], prompts=prompts)
        right = trainer.teacher._contexts._successes(generation)
        assert right == [None if k is None else texts[k] for k in shown]


def test_dropout_is_off_in_the_pass(sampled):
    lora = LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    trainer, batch, teacher_t = sampled(
        "opd", teacher="policy", teacher_prompt=TOLD, trainer_kwargs={"peft_config": lora}
    )
    trainer.teacher.score(GenerationBatch(batch, batch.rewards, [trainer.train_dataset[i // 4] for i in range(8)]))
    assert torch.equal(batch.data[keys.TEACHER_LOGPS], teacher_t) and trainer.model.training


def test_a_conversation_gets_the_text_in_its_last_user_turn(make_trainer):
    trainer = make_trainer("opd", teacher="policy", teacher_prompt=TOLD)
    turns = [{"role": role, "content": role[:1]} for role in ("system", "user", "assistant")]
    row = {"prompt": [*turns, {"role": "user", "content": [{"type": "text", "text": "3+4="}]}], "answer": 7}
    contexts = trainer.teacher._contexts
    assert contexts._of_row(row, None) == [*turns, {"role": "user", "content": "3+4=7;"}]
    assert contexts._of_row({**row, "answer": None}, None) is None


def test_a_function_makes_contexts(sampled):
    def reverse(row):
        return None if row["answer"] == "1" else row["prompt"][::-1]

    trainer, batch, teacher_t = sampled("opd", teacher="policy", teacher_prompt=reverse)
    reverse_ids = trainer.tokenizer(trainer.train_dataset[0]["prompt"][::-1])["input_ids"]
    check_rows(batch, teacher_t, trainer.model, [reverse_ids] * 4 + [None] * 4)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"teacher_prompt": "{prompt}{why}"}, "row 0: teacher_prompt='{prompt}{why}' reads a column 'why'"),
        ({"teacher": "policy", "teacher_prompt": "{prompt}"}, "row 0: .* gives the tokens of the prompt itself"),
        ({"teacher_prompt": "{prompt}" * 500}, "row 0: .* tokens, and the teacher has a context of"),
        ({"teacher_prompt": lambda row: 3}, "returned int, and the prompt is str"),
        ({"teacher": "/no/such/folder"}, "teacher='/no/such/folder' cannot be loaded .* name a folder with"),
        ({"teacher": demo_model_path()}, r"has a vocabulary of \d+ tokens, and the policy another one of \d+"),
        # the longest row is looked at
        (
            {"teacher_prompt": TOLD, "trainer_kwargs": {"train_dataset": ONE_LONG}},
            r"train_dataset, row 40: .* gives \d+ tokens, and the teacher has a context",
        ),
    ],
    ids=["column", "same", "long", "kind", "missing", "vocabulary", "longest row"],
)
def test_a_teacher_that_cannot_score_is_refused_before_the_run(make_trainer, knobs, says):
    with pytest.raises(ValueError, match=says):
        make_trainer("opd", **knobs)


def test_a_context_that_is_too_long_with_its_response_is_left_out(make_trainer):
    trainer = make_trainer("opd", teacher="policy", teacher_prompt=TOLD)
    trainer.teacher._limit = 12
    batch, teacher_t = scored(trainer)
    told = [len(TOLD.format(**trainer.train_dataset[i // 4])) for i in range(8)]
    lengths = [n + len(ids) for n, ids in zip(told, batch.completion_ids, strict=True)]
    assert teacher_t.isnan().all(-1).tolist() == [n > 12 for n in lengths]


def test_an_advantage_is_kept_in_rows_without_a_context(trained):
    trainer = trained("opd", teacher="policy", teacher_prompt=lambda row: None if row["answer"] else None)
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert all(row["credit/teacher/no_context"] == 1.0 and math.isfinite(row["loss"]) for row in steps)


class Agreement:
    """Takes ℓᵀ of the whole batch as its statistics."""

    needs = ("teacher",)

    def statistics(self, config, batch):
        assert batch.teacher_logp_t.shape == batch.mask_t.shape
        return batch.teacher_logp_t * 2

    def credit(self, config, tokens):
        assert torch.equal(2 * tokens.teacher_logp_t, tokens.statistics_t)  # of the same row, in every order
        return Credit(None, tokens.advantages.unsqueeze(1) + tokens.teacher_logp_t)


def test_a_function_of_ones_own_reads_the_teacher(trained, make_trainer):
    settings = {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    trainer = trained(credit=Agreement(), teacher="policy", teacher_prompt=TOLD, **settings)
    assert trainer.state.log_history[0]["credit/teacher/kl"] != 0.0
    with pytest.raises(ValueError, match="does not read it"):
        make_trainer(credit=lambda config, tokens: None, teacher="reference")
