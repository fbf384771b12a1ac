"""Errors on the command line and in YAML files: one line that names the field, and no traceback."""

import json
import shlex
from pathlib import Path

import pytest
from script_helpers import QUICK, error_of
from scripts import load_script

from trl_credit.demo import demo_model_path
from trl_credit.settings.arguments import parse_arguments


KIND = "mistakes on the command line"
train = load_script("examples/train.py")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The line with which `examples/train.py` stops."""
    monkeypatch.chdir(tmp_path)
    return lambda argv: error_of(train.main, argv, capsys)


FLAGS = [
    ("--report_to wandb", "report_to='wandb' needs a package that is not installed: pip install wandb"),
    ("--report_to wandbb", "report_to='wandbb' is not a known tracker: did you mean 'wandb'?"),
    ("--gradient_accumulation_steps 0", "gradient_accumulation_steps must be at least 1"),
    ("--generation_batch_size=-64", "generation_batch_size must be at least 1"),
    ("--num_generations 1", "num_generations must be at least 2"),
    ("--learning_rate -1", "learning_rate must be at least 0 and finite, got -1.0"),
    ("--learning-rate nan", "learning_rate must be at least 0 and finite, got nan"),
    ("--learning_rate -1e-5", "learning_rate must be at least 0 and finite, got -1e-05"),
    ("--temperature=-0.5", "temperature must be positive"),
    ("--lora_r 0 --use_peft", "lora_r must be at least 1"),
    ("--lora_alpha 0 --use_peft", "lora_alpha must be at least 1"),
    ("--lora_dropout 1 --use_peft", "lora_dropout must be at least 0 and below 1"),
    ("--evaluate_every 0", "evaluate_every must be at least 1 step"),
    ("--learning-rate=abc", "--learning_rate: invalid float value: 'abc'"),
    ("--learning_rate=", "--learning_rate: invalid float value: ''"),
    ("--max_steps 1.5", "--max_steps: invalid int value: '1.5'"),
    ("--use_vllm maybe", "--use_vllm: ", "maybe"),
    ("--no_leave_own_out=1", "--no_leave_own_out: ignored explicit argument"),
    ("--learning_rate", "--learning_rate: expected one argument"),
    ("--reward", "--reward: expected at least one argument"),
    ("--algo", "--algo: expected one argument"),
    ("--model_name_or_path=", "--model_name_or_path is empty"),
    ("--output_dir=", "--output_dir is empty"),
    ("--dataset_name=", "--dataset_name is empty"),
    ("--algo strace", "unknown algorithm 'strace': did you mean 's_trace'?"),
    ("--algo GRPO", "did you mean 'grpo'?"),
    ("--algo zzz", "choose one of grpo, dapo"),
    ("--trace_lamda 0.3", "unknown flag '--trace_lamda': did you mean '--trace_lambda'?"),
    ("--no_mask_truncated_completions", "unknown flag '--no_mask_truncated_completions'"),
    ("-lr 1", "unknown flag '-lr'"),
    ("--alg grpo", "unknown flag '--alg'"),
    ("--qqqqq 1", "unknown flag '--qqqqq': --help all lists them"),
    ("grpo", "'grpo' follows no flag"),
    ("--selector entropyy", "selector must be one of", "did you mean 'entropy'?"),
    ("--importance lambda", "did you mean 'lambda_trace'?"),
    ("--loss_type dpao", "loss_type must be one of", "got 'dpao': did you mean 'dapo'?"),
    ("--scale_rewards False", "scale_rewards must be one of 'group', 'batch', 'none'", "got 'False'"),
    ("--lr_scheduler_type consine", "--lr_scheduler_type: invalid choice: 'consine'", "'cosine'"),
    ("--evaluation_protocol demo_gredy", "evaluation_protocol='demo_gredy' is unknown: did you mean 'demo_greedy'?"),
    ("--evaluation_protocol demo --evaluate_on aime24", "evaluate_on: 'demo' has no set 'aime24': choose one"),
    ("--evaluate_on demo", "evaluate_on needs --evaluation_protocol"),
    ("--trace_lambda 1.5 --algo s_trace", "trace_lambda must be in [0, 1], got 1.5"),
    ("--fp16 --bf16 true", "At most one of fp16 and bf16 can be True"),
    ("--model_init_kwargs {", "Expecting property name"),
    ("--model_init_kwargs 3", "model_init_kwargs must be `name: value` pairs, got '3'"),
    ('--model_init_kwargs {"foo":1} --dataset_name demo', "model_init_kwargs: ", "'foo'"),
    ('--accelerator_config {"foo":1}', "'foo'"),
    ("--deepspeed none.json", "none.json"),
    ("--fsdp foo", "Unknown `fsdp` option: foo"),
    ("--lr_scheduler_type warmup_stable_decay", "num_decay_steps"),
    (
        '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr":"x"}',
        "unsupported operand",
    ),
    ("--optim paged_adamw_8bit", "bitsandbytes"),
    ("--config", "--config: expected at least one argument"),
    ("--config none.yaml", "there is no file 'none.yaml'"),
    ("--config folder", "'folder' is a folder: name a YAML file"),
    ("--model_name_or_path Qwen/Qwen3-1.7B", "'Qwen/Qwen3-1.7B' has no data to train on: set --dataset_name"),
    ("--dataset_name demo --model_name_or_path ./none", "model_name_or_path='./none': there is no such folder"),
    ("--dataset_name demo --model_name_or_path a/b/c", "model_name_or_path='a/b/c': there is no such folder"),
    ("--dataset_name demo --model_name_or_path file", "model_name_or_path='file' is a file"),
    ("--dataset_name demo --model_name_or_path folder", "model_name_or_path='folder' has no config.json"),
    ("--dataset_name demo --model_name_or_path ' a'", "model_name_or_path=' a' is no folder"),
    ("--dataset_name demo --model_name_or_path no/such-model-here", "is no folder", "HF_HUB_OFFLINE is set"),
    (
        "--dataset_name demo --model_name_or_path unknown",
        "model_name_or_path='unknown' has model_type='foo'",
        "upgrade",
    ),
    ("--dataset_name gsm8k --model_name_or_path unknown", "model_name_or_path='unknown' has model_type='foo'"),
    (
        "--dataset_name demo --model_name_or_path untyped",
        "model_name_or_path='untyped' has a config.json without a known model_type",
    ),
    ("--dataset_name demo --model_name_or_path broken", "model_name_or_path='broken' has a config.json without"),
    ("--dataset_name demo --model_name_or_path theirs", "own code: read it, then set --trust_remote_code"),
    ("--dataset_name demo --model_name_or_path mute", "model_name_or_path='mute' has no tokenizer", "save_pretrained"),
    ("--dataset_name gsm8k --model_name_or_path mute", "model_name_or_path='mute' has no tokenizer"),
    ("--dataset_name demo --model_name_or_path torn", "model_name_or_path='torn' has no tokenizer", "save_pretrained"),
    ("--data_dir nowhere", "there is no folder 'nowhere': check --data_dir"),
    ("--data_dir nowhere --dataset_name gsm8k --model_name_or_path no/such", "no folder 'nowhere': check --data_dir"),
    ("--data_dir folder", "data_dir='folder' does nothing, since dataset_name=None is no known set"),
    ("--algo spo_tree --tree_branching [2,2]", "invalid int value: '[2,2]': write --tree_branching 2 2"),
    ("--algo spo_tree --tree_branching [2, 2]", "invalid int value: '[2,': write --tree_branching 2 2"),
    ("--algo spo_tree --tree_branching=2,2", "invalid int value: '2,2': write --tree_branching 2 2"),
    ("--algo spo_tree --tree_branching 2 x", "--tree_branching: invalid int value: 'x'"),
    ("--reward_range (0,1)", "invalid float value: '(0,1)': write --reward_range 0 1"),
    ("--output_dir file", "output_dir='file' cannot be written to"),
    ("--output_dir file/run", "output_dir='file/run' cannot be written to"),
    ("--output_dir dangling/run", "output_dir='dangling/run' cannot be written to"),
    ("--output_dir /proc/run", "output_dir='/proc/run' cannot be written to"),
    ("--top_k -5", "top_k must be at least 1, or 0 (all tokens"),
    ("--eval_on_start", "eval_on_start=True has no data set here"),
    ("--max_prompt_length 9", "unknown flag '--max_prompt_length': TRL removed it in 0.28; leave longer prompts out"),
    ("--use-liger-loss", "unknown flag '--use-liger-loss': TRL removed it in 0.28; leave it out"),
    ("--max_length 9", "unknown flag '--max_length': --help all lists them"),
    ("--eval_strategy steps", "eval_strategy='steps' has no data set here", "--evaluation_protocol"),
    ("--evaluate_every 5", "evaluate_every needs --evaluation_protocol"),
    (
        "--lora_r 8 --lora_target_modules q_proj",
        "lora_r=8 does nothing, since use_peft=False: set use_peft=True, or leave lora_r out.",
    ),
    ("--lora_target_modules q_proj", "lora_target_modules='q_proj' does nothing, since use_peft=False"),
    ("--lora_r 16 --lora_alpha 32", "lora_r=16 does nothing, since use_peft=False: set", "lora_alpha=32"),  # defaults
    ("--use_dora", "use_dora=True does nothing, since use_peft=False"),
    ("--use_bnb_nested_quant", "use_bnb_nested_quant=True does nothing, since load_in_4bit=False"),
    ("--load_in_8bit --bnb_4bit_quant_type fp4", "bnb_4bit_quant_type='fp4' does nothing, since load_in_4bit=False"),
    ("--model_revision v2", "model_revision='v2' does nothing, since ", "is a folder"),
    ("--attn_implementation flash_attention_9", "flash_attention_9"),
    ("--resume_from_checkpoint no_such", "no checkpoint in 'no_such'"),
    ("--resume_from_checkpoint true", "no complete checkpoint in 'out'", "resume_from_checkpoint"),
]


def make_models(folder):
    """Models without weights: of an unknown type, with code, and without a tokenizer that can be read."""
    known = json.loads(Path(demo_model_path(), "config.json").read_text())
    theirs = {"model_type": "foo", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    configs = {"unknown": {"model_type": "foo"}, "untyped": {"hidden_size": 8}, "theirs": theirs}
    for name, config in {**configs, "mute": known, "torn": known}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "theirs" / "code.py").write_text("raise SystemExit('ran')\n")
    (folder / "torn" / "tokenizer.json").write_text("{")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(("words", "said"), [(words, said) for words, *said in FLAGS], ids=[row[0] for row in FLAGS])
def test_flags(refused, tmp_path, words, said):
    if "/proc" in words and not Path("/proc/self").exists() or "/dev" in words and not Path("/dev/full").exists():
        pytest.skip("needs Linux")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    make_models(tmp_path)
    argv = ["--output_dir", "out", *shlex.split(words.replace('"', '\\"'))]
    message = refused(argv)
    assert all(part in message for part in said), message
    assert not (tmp_path / "out" / "README.md").exists() and not list(tmp_path.glob("**/.trl_credit_*"))


@pytest.mark.hostile(KIND, "survived")
def test_settings_of_trl_without_effect_are_named_once(tmp_path, caplog, record_property):
    """All in one warning; those of TRL's evaluation, which the command does not run, in another."""
    (tmp_path / "my.yaml").write_text(
        "vllm_server_port: 1\nwarmup_steps: 50\nlr_scheduler_type: constant\nmax_grad_norm: null\ntop_k: null\n"
    )
    flags = "--vllm_mode server --vllm_gpu_memory_utilization 0.5 --sapo_temperature_pos 2 --ref_model_sync_steps 3 "
    flags += "--eval_steps 5 --num_generations_eval 2 --per_device_eval_batch_size 4 --vllm_model_impl vllm"
    parse_arguments(["--config", str(tmp_path / "my.yaml"), *flags.split()])
    ignored, of_evaluation = [r.getMessage() for r in caplog.records if r.name.startswith("trl_credit")]
    assert {line.partition("=")[0] for line in ignored.splitlines()[1:]} == {
        *("vllm_server_port", "warmup_steps", "vllm_mode", "vllm_gpu_memory_utilization", "sapo_temperature_pos"),
        "ref_model_sync_steps",
    }
    assert "num_generations_eval and per_device_eval_batch_size and eval_steps do nothing here" in of_evaluation
    record_property("tried", 12)


@pytest.mark.hostile(KIND, "refused")
def test_all_errors_come_at_once(tmp_path, command_said):
    (tmp_path / "my.yaml").write_text("learning_rate: -1\nmax_prompt_length: 4\n")
    flags = "--no_such_flag 5 --trace_lamda 1 --gamma 3 --lora_r 4 --evaluate_every 5 --loss_type sapo"
    argv = ["--config", str(tmp_path / "my.yaml"), *flags.split()]
    with pytest.raises(ValueError, match="unknown field") as caught:
        parse_arguments(argv)
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [
        *("unknown", "unknown", "unknown", "learning_rate", "gamma", "loss_type='sapo'", "evaluate_every", "lora_r=4")
    ]
    code, _, said = command_said("train", "--algo", "strace", *argv)  # names alone, before torch is imported
    names = [line.split()[3] for line in said.splitlines() if line.startswith("error: unknown ")]
    assert (code, names) == (2, ["'max_prompt_length'", "'strace':", "'--no_such_flag':", "'--trace_lamda':"])
    with pytest.raises(ValueError) as caught:
        parse_arguments(["--max_steps", "x", "--learning_rate", "y", "--loss_type", "sapo"])
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["--max_steps", "--learning_rate"]


BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
FILES = [
    ("max_steps: ten", "max_steps in my.yaml: invalid int value: 'ten'"),
    ("max_steps: 1.5", "max_steps in my.yaml: invalid int value: '1.5'"),
    ("max_steps: true", "max_steps in my.yaml: invalid int value: 'True'"),
    ("max_steps:", "max_steps in my.yaml is empty"),
    ("learning_rate: [1, 2]", "learning_rate in my.yaml cannot be [1, 2]"),
    ("learning_rate: {a: 1}", "learning_rate in my.yaml cannot be {'a': 1}"),
    ("learning_rate: .nan", "learning_rate must be at least 0 and finite, got nan (learning_rate is set in my.yaml)"),
    ("output_dir: {a: 1}", "output_dir in my.yaml cannot be {'a': 1}"),
    ("output_dir: 5", "output_dir in my.yaml must be text, got 5: write it in quotes"),
    ("use_vllm: maybe", "use_vllm in my.yaml: "),
    ("use_vllm: [true]", "use_vllm in my.yaml cannot be [True]"),
    ("save_strategy: no", "got False: write it in quotes"),
    ("optim: adamw_trch", "optim in my.yaml: invalid choice: 'adamw_trch'"),
    ("reward: [[accuracy]]", "reward in my.yaml cannot be [['accuracy']]"),
    ("reward: [5]", "reward in my.yaml must be text, got 5"),
    ("reward_weights: [a]", "reward_weights in my.yaml: invalid float value: 'a'"),
    ("reward_range: {a: 1}", "reward_range in my.yaml cannot be {'a': 1}"),
    ("gradient_checkpointing_kwargs: 3", "gradient_checkpointing_kwargs in my.yaml"),
    ("algo: strace", "unknown algorithm 'strace' in my.yaml: did you mean 's_trace'?"),
    ("trace_lamda: 0.5", "unknown field 'trace_lamda' in my.yaml: did you mean 'trace_lambda'?"),
    ("evaluation_strategy: 'no'", "in my.yaml: transformers removed it; write eval_strategy"),
    ("per_device_train_batch_size: 0", "per_device_train_batch_size must be at least 1, got 0"),
    ("trace_lambda: 3\nalgo: grpo_lambda", "trace_lambda must be in [0, 1], got 3.0 (trace_lambda is set in my.yaml)"),
    ("lora_r: 8", "lora_r=8 does nothing, since use_peft=False", "(lora_r is set in my.yaml)"),
    ("beta: 0.1\nbeta: 0.2", "'beta' is already set in line 1", "line 2"),
    ("about: {what: a, what: b}", "'what' is already set in line 1"),
    ("1: 2", "1 in 'my.yaml' is no name of a setting"),
    ("? [a, b]\n: 1", "cannot be read as YAML"),
    ("- 1", "must hold `name: value` lines"),
    ("just words", "must hold `name: value` lines"),
    ("beta: [", "'my.yaml' cannot be read as YAML: ", "line 1"),
    ("\tbeta: 1", "'my.yaml' cannot be read as YAML: ", "line 1"),
    ("beta: !!python/object/apply:os.system [ls]", "'my.yaml' cannot be read as YAML: ", "line 1"),
    ("base: 5", "`base` in 'my.yaml' must be a file"),
    ("base: [none.yaml]", "there is no file 'none.yaml'"),
    ("base: my.yaml", "is its own `base`"),
    ("beta: 2025-13-45", "'my.yaml' cannot be read as YAML"),
    ("x: &x [*x]", "holds an alias of itself"),
    ("a: &a [x, x, x, x, x, x, x, x, x]\n" + BOMB, "more than 10,000 values"),
    ("x: " + "[" * 5000, "nested too deep"),
    ("x: " + "y" * 200_000, "is larger than"),
    ("beta: \x00", "cannot be read as YAML"),
]


@pytest.mark.hostile(KIND, "survived")
def test_powers_of_ten_are_numbers_wherever_they_stand(tmp_path, record_property):
    file = tmp_path / "my.yaml"
    file.write_text(
        "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}\nlearning_rate: 1e-5\n"
        'run_name: "1e5"\ngeneration_kwargs: {min_p: [1e-1], text: "1e5"}\nreward_weights: [-1e-3]\n'
    )
    args = parse_arguments(["--config", str(file)])[2]
    assert args.lr_scheduler_kwargs == {"min_lr": 1e-6} and args.learning_rate == 1e-5
    assert args.generation_kwargs == {"min_p": [0.1], "text": "1e5"}
    assert args.run_name == "1e5" and type(args.run_name) is str and args.reward_weights == [-0.001]
    assert parse_arguments(["--reward_weights", "1", "-1e-3"])[2].reward_weights == [1.0, -0.001]
    record_property("tried", 6)


REWARDS = {
    "late": (
        "import asyncio\nasync def late(completions, **kwargs):\n    await asyncio.sleep(60)",
        "took longer than reward_timeout=1.0 seconds for 8 responses",
    ),
    "raises": (
        "def raises(completions, **kwargs):\n    yield 1.0\n    {}['a']",
        "raised KeyError: 'a', on 8 responses",
        "in line 3 of f.py. Nothing was trained on them.",
    ),
    "leaves": (
        "import sys\ndef leaves(completions, **kwargs):\n    sys.exit(0)",
        "called sys.exit(0), on 8 responses",
        "in line 3 of f.py",
    ),
    "share": (
        "def share(completions, **kwargs):\n    return 0.5",
        "reward function 'share' returned 0.5 (a float) for 8 responses, the first to prompt '",
    ),
}


@pytest.mark.hostile("reward functions", "refused")
@pytest.mark.parametrize("name", REWARDS)
def test_what_a_reward_does_in_the_first_batch(refused, tmp_path, name):
    source, *said = REWARDS[name]
    limit = "1" if name == "late" else "60"
    (tmp_path / "f.py").write_text(source)
    message = refused([*QUICK, "--reward", f"f.py:{name}", "--reward_timeout", limit, "--disable_tqdm", "true"])
    assert all(part in message for part in said), message
    assert not list(tmp_path.glob("**/model.safetensors"))


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(("text", "said"), [(text, said) for text, *said in FILES], ids=[row[0][:30] for row in FILES])
def test_yaml(refused, tmp_path, text, said):
    (tmp_path / "my.yaml").write_text(text)
    argv = ["--config", "my.yaml"] if "output_dir" in text else ["--config", "my.yaml", "--output_dir", "out"]
    message = refused(argv)
    assert all(part in message for part in said), message


@pytest.mark.hostile(KIND, "refused")
def test_a_binary_file_is_no_configuration(refused, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(128, 256)))
    assert "cannot be read as YAML: 'utf-8' codec" in refused(["--config", "model.safetensors"])


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("flags", "processes", "size", "fixes"),
    [
        ("--num_generations 7", 1, 64, ["num_generations=8", "per_device_train_batch_size=63"]),
        ("--num_generations 6 --gradient_accumulation_steps 2", 1, 128, ["per_device_train_batch_size=63"]),
        ("--num_generations 12", 2, 128, ["num_generations=16", "per_device_train_batch_size=66"]),
        ("--num_generations 7 --generation_batch_size 128", 1, 128, ["num_generations=8"]),
        ("--num_generations 5 --steps_per_generation 2", 1, 128, ["num_generations=4"]),
    ],
)
def test_groups_that_do_not_fill_the_batch(refused, monkeypatch, tmp_path, flags, processes, size, fixes):
    monkeypatch.chdir(tmp_path)
    if processes > 1:
        monkeypatch.setenv("WORLD_SIZE", str(processes))
    message = refused([*flags.split(), "--output_dir", "out"])
    assert f"does not divide the {size} responses" in message
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for fix in fixes:
        assert fix in message
        if processes == 1:  # what is proposed is taken
            train.parse_arguments([*flags.split(), *f"--{fix}".split("="), "--output_dir", "out"])


@pytest.mark.hostile(KIND, "survived")
def test_unusual_but_valid_settings(tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(
        "learning_rate: 1e-5\nmax_steps: 7\nsave_strategy: 'no'\nreport_to: none\n"
        "beta: &b 0\nepsilon: *b\nuse_vllm: false\nmax_prompt_tokens: null\nreward: demo\ntree_branching: [2, 2]\n"
        "algo: spo_tree\ngeneration_kwargs: {do_sample: true}\nresume_from_checkpoint: true\n"
    )
    argv = "--config a.yaml --beta 0.1 --beta=0.3 --log-completions --output_dir out --max_steps 8"
    script, data, args, _, _ = train.parse_arguments(argv.split())
    assert (args.learning_rate, args.max_steps, args.beta, args.epsilon) == (1e-5, 8, 0.3, 0.0)
    assert script.reward == ["demo"] and args.log_completions and data.max_prompt_tokens is None
    assert args.generation_kwargs == {"do_sample": True}
    (tmp_path / "b.yaml").write_text("scale_rewards: false\nalgo: grpo\n")
    assert train.parse_arguments(["--config", "b.yaml"])[2].scale_rewards == "none"
    sizes = "--num_generations 7 --gradient_accumulation_steps 7 --per_device_train_batch_size 3 --output_dir out"
    assert train.parse_arguments(sizes.split())[2].generation_batch_size == 21  # as it fits
    record_property("tried", 3)
