"""Statistics of a whole generation batch: what the function sees, where its result goes, that cuts do not matter."""

import pytest
import torch
from conftest import count_a
from custom_functions import args_of
from processes import TORCHRUN, results, run
from segment_helpers import CHAIN, TREE, batches
from weight_helpers import weights

from trl_credit import Credit
from trl_credit.credit.tokens import BatchTokens, wide
from trl_credit.testing import check_credit, made_up_tokens


WIDE = {"cov_range": [0.0, 9.0], "cov_share": 0.3}


def declaring(statistics, seen=None):
    def credit(config, tokens):
        if seen is not None:
            seen.append(tokens)
        return Credit(None, tokens.advantages)

    credit.batch_statistics = statistics
    return credit


@pytest.mark.parametrize(
    "settings",
    [
        {"steps_per_generation": 4, "per_device_train_batch_size": 4},
        {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 4, "shared_prefix": "on"},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "length_sort": "off"},
        {"num_iterations": 2, "rollouts": "chain", "segmentation": "fixed_length", "segment_length": 3},
        {"num_iterations": 2, "token_mask": "probability", "probability_threshold": 0.04, "advantage_floor": -0.1},
        {"num_iterations": 2, "mask_truncated_completions": True, "max_completion_length": 30},
    ],
    ids=str,
)
def test_the_result_travels_with_its_tokens(trained, settings):
    """It does whatever shuffles, sorts, trims or packs the rows. Here the result is what the function receives."""
    sampled, seen = [], []

    def statistics(config, batch):
        assert isinstance(batch, BatchTokens) and config.learning_rate == 1e-3
        sampled.append(batch)
        return torch.stack([batch.logp_t, batch.advantage_t]).sum(0) + 7 * batch.mask_t

    trained(credit=declaring(statistics, seen), **settings)
    trained_on = [tokens for tokens in seen if tokens.logp_t.requires_grad]
    assert len(sampled) >= 1 and len(trained_on) >= 2
    if "token_mask" in settings:
        assert any((tokens.policy_mask_t < tokens.mask_t).any() for tokens in trained_on)
    for tokens in trained_on:
        inside = tokens.mask_t.bool()
        a = tokens.advantages if tokens.advantages.dim() == 2 else tokens.advantages.unsqueeze(1)
        expected = tokens.old_logp_t + a + 7 * tokens.policy_mask_t
        assert torch.equal(tokens.statistics_t[inside], expected[inside])


def test_it_is_taken_once_per_generation_batch_and_in_evaluation(make_trainer):
    calls, seeds = [], []

    def statistics(config, batch):
        calls.append(batch.logp_t.shape[0])
        seeds.append(batch.generator.initial_seed())
        return torch.zeros_like(batch.logp_t)

    trainer = make_trainer(credit=declaring(statistics), steps_per_generation=2, num_iterations=2, max_steps=5)
    trainer.train()
    assert calls == [16, 16] and len(set(seeds)) == 2
    trainer.evaluate(trainer.train_dataset.select(range(8)))
    assert len(calls) > 2 and set(calls[2:]) == {8}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda batch: batch.logp_t[:, 0], "must be a floating tensor of shape .*it returned torch.float32 of shape"),
        (lambda batch: batch.mask_t.long(), "it returned torch.int64 of shape"),
        (lambda batch: batch.columns[0], "batch statistics of .* raised TypeError.*"),
    ],
)
def test_a_wrong_result_is_refused(make_trainer, result, message):
    trainer = make_trainer(credit=declaring(lambda config, batch: result(batch)), num_iterations=2)
    with pytest.raises(Exception, match=message):
        trainer.train()


class Reads:
    """Keeps what it receives, and needs what its class declares."""

    by_row = True

    def __init_subclass__(cls, needs=()):
        cls.needs, cls.seen = needs, []

    def statistics(self, config, batch):
        self.seen.append(batch)
        return batch.mask_t * (1.0 if self.seen[0].rewards is None else batch.rewards.unsqueeze(1))

    def credit(self, config, tokens):
        return Credit(None, tokens.advantages)


class Logps(Reads, needs="logps"):
    pass


def test_without_log_probabilities_it_is_refused_when_the_configuration_is_built():
    with pytest.raises(ValueError, match="is one update per batch, for which no π_old is computed"):
        args_of(credit=Logps)
    credit = declaring(lambda config, batch: batch.logp_t)
    with pytest.raises(ValueError, match="takes statistics of a batch from π_old.*Set steps_per_generation=2 or num"):
        args_of(credit=credit)
    args_of(credit=credit, num_iterations=2)
    with pytest.raises(ValueError, match="td_upper_bound=.*takes statistics over the batch"):
        args_of(credit=credit, num_iterations=2, td_upper_bound=True)


SOURCES = {
    "responses": {},
    "refill": {"groups": "refill", "per_device_train_batch_size": 16},
    "chain": {**CHAIN, "rollouts_per_state": 2, "segmentation": "fixed_length", "segment_length": 3},
    "tree": TREE,
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_batch_has_what_belongs_to_its_rows(make_trainer, source):
    class Everything(Reads, needs="columns"):
        pass

    trainer = make_trainer(credit=Everything, **SOURCES[source], max_steps=1)
    sampled = batches(trainer)
    trainer.train()
    (batch,) = Everything.seen
    assert "old_per_token_logps" not in sampled[0] or source == "chain"  # what reads none costs no pass
    rows = len(batch.mask_t)
    assert batch.logp_t is None and batch.group_ids.shape == (rows,) and batch.group_ids.min() == 0
    if source == "tree":
        assert batch.rewards is batch.reward_columns is batch.columns is None
        return
    texts = trainer.tokenizer.batch_decode(batch.token_ids, skip_special_tokens=True)
    assert batch.rewards.tolist() == count_a(texts) and torch.equal(batch.reward_columns[:, 0], batch.rewards)
    prompts = [row["prompt"] for row in batch.columns]
    assert all(len({prompts[i] for i in (batch.group_ids == q).nonzero()[:, 0]}) == 1 for q in batch.group_ids)
    assert len(set(prompts)) == len(batch.group_ids.unique()) > 1
    assert torch.equal(batch.segment_ids >= 0, batch.turn_ids >= 0)
    assert (batch.segment_ids.max() > 0) == (source == "chain")


# Cuts, processes, resumes


@pytest.mark.parametrize("algo", ["clip_cov", "kl_cov", "fipo"])
def test_the_cut_into_micro_batches_does_not_matter(make_trainer, algo):
    """Two updates of a batch of 16 rows, as micro-batches of 8 rows or of one."""
    own = {"clip_cov": WIDE, "kl_cov": {"cov_share": 0.3}}.get(algo, {})
    same = {"optim": "sgd", "learning_rate": 0.5, **own}
    runs = []
    for cut in (
        {"per_device_train_batch_size": 8, "steps_per_generation": 2},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "steps_per_generation": 16},
    ):
        trainer = make_trainer(algo, **cut, **same)
        runs.append((trainer, batches(trainer)))
        trainer.train()
    (left, (a,)), (right, (b,)) = runs
    assert torch.equal(a["completion_ids"], b["completion_ids"])
    if algo != "fipo":
        assert torch.equal(a["batch_statistics"], b["batch_statistics"]) and a["batch_statistics"].sum() > 4
    torch.testing.assert_close(weights(left), weights(right), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(tmp_path):
    (one,) = results(run("run_batch_statistics.py", tmp_path))
    two = results(run(*TORCHRUN, "run_batch_statistics.py", tmp_path))
    assert len(two) == 2
    for name, chosen in one["chosen"].items():
        assert len(chosen) == (8 if name == "fields" else 17)
        assert [*two[0]["chosen"][name], *two[1]["chosen"][name]] == chosen, name


# check_credit


def needs(statistics):
    def credit(config, tokens):
        return Credit(None, wide(tokens.advantages) * (1 + tokens.statistics_t))

    credit.batch_statistics = statistics
    return credit


def mean_of(batch, mask_t):
    return (torch.where(mask_t.bool(), batch.logp_t, 0.0).sum() / mask_t.sum()).expand_as(batch.logp_t)


def test_check_credit_takes_statistics_of_all_rows():
    args = args_of(num_iterations=2)
    good = needs(lambda config, batch: mean_of(batch, batch.mask_t))
    assert "batch statistics" in check_credit(good, config=args)
    tokens = made_up_tokens()
    assert tokens.statistics_t is None
    draws = needs(lambda config, batch: torch.rand(batch.logp_t.shape, dtype=torch.float64))
    with pytest.raises(AssertionError, match="'batch statistics'.*batch.generator"):
        check_credit(draws, config=args)
    padded = needs(lambda config, batch: mean_of(batch, torch.ones_like(batch.mask_t)))
    with pytest.raises(AssertionError, match="'batch statistics'.*use batch.mask_t"):
        check_credit(padded, config=args)
