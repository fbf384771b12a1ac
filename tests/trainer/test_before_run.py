"""`max_completion_length=None`: the rest of the model's context."""

import pytest
from conftest import sums
from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM


NO_END = {"suppress_tokens": [0, 1]}  # padding and the end of a sequence


@pytest.mark.parametrize("algo", ["grpo", "dr_grpo", "spo_chain", "spo_tree"])
def test_no_limit_is_what_a_prompt_leaves_of_the_context(make_trainer, algo, caplog):
    trainer = make_trainer(algo, max_completion_length=None, max_steps=1, generation_kwargs=NO_END, n_prompts=8)
    assert trainer.args.max_completion_length == trainer.max_completion_length == 1024
    trainer.args.max_completion_length = trainer.max_completion_length = 32  # a context that is soon full
    trainer.model.config.max_position_embeddings = 32
    trainer.generation_config.max_length = trainer.generation_kwargs["max_length"] = 32
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "completions/max_length" in row]
    assert row["completions/max_length"] == 32 - len(sums(1)[0]["prompt"])
    assert "max_new_tokens" not in caplog.text


def test_a_model_without_a_context_needs_a_number(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=1, n_head=2))
    kwargs = {"model": model, "processing_class": tokenizer}
    with pytest.raises(ValueError, match="max_completion_length=None .* no max_position_embeddings: set a number"):
        make_trainer("grpo", max_completion_length=None, trainer_kwargs=kwargs)
    assert make_trainer("grpo", trainer_kwargs=kwargs).engine.remaining_budget(4, 2) == 6
