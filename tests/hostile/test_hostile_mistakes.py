"""Mistakes on the command line and in YAML files, Ctrl-C and a full disk: one line, and no traceback."""

import importlib.util
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

import trl_credit
from trl_credit.cli import parse_arguments
from trl_credit.mistakes import check_output_dir, disk_full
from trl_credit.report.results import RESULTS
from trl_credit.rewards import watchdog
from trl_credit.run import Ending
from trl_credit.signals import StopSignals
from trl_credit.startup import quiet_start, show_vllm_version
from trl_credit.trainer.checkpoints import last_checkpoint


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KIND = "mistakes on the command line"
QUICK = ["--per_device_train_batch_size", "8", "--num_generations", "4", "--logging_steps", "1", "--algo", "grpo"]
pytestmark = pytest.mark.usefixtures("one_thread")


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_script", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train, evaluate = load("train"), load("evaluate")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """The one line of a script that stops with an exit code; without the variables of a launcher."""
    monkeypatch.chdir(tmp_path)

    def call(argv: list[str], *, code: int = 2, script=train) -> str:
        with pytest.raises(SystemExit) as stop:
            script.main(list(map(str, argv)))
        said = capsys.readouterr()
        assert stop.value.code == code, said.err
        lines = said.err.strip().splitlines()
        assert "Traceback" not in said.err and "usage:" not in said.err + said.out
        assert len(lines) == 1 or code == 1, said.err  # a progress bar stands before what ends a run under way
        assert lines[-1].startswith("error: ")
        return lines[-1].removeprefix("error: ")

    return call


FLAGS = [
    ("--report_to wandb", "--report_to='wandb' wants a package that is not installed: pip install wandb"),
    ("--report_to wandbb", "--report_to='wandbb' is no tracker: did you mean 'wandb'?"),
    ("--per_device_train_batch_size 0", "--per_device_train_batch_size must be at least 1, got 0"),
    ("--gradient_accumulation_steps 0", "--gradient_accumulation_steps must be at least 1"),
    ("--steps_per_generation 0", "--steps_per_generation must be at least 1"),
    ("--generation_batch_size=-64", "--generation_batch_size must be at least 1"),
    ("--num_generations 0", "--num_generations must be at least 2"),
    ("--num_generations 1", "--num_generations must be at least 2"),
    ("--num_iterations 0", "--num_iterations must be at least 1"),
    ("--learning_rate -1", "--learning_rate must be 0 or more, got -1.0"),
    ("--learning-rate nan", "--learning-rate must be 0 or more, got nan"),
    ("--learning_rate inf", "--learning_rate must be 0 or more, got inf"),
    ("--weight_decay -1", "--weight_decay must be 0 or more"),
    ("--temperature 0", "--temperature must be above 0"),
    ("--temperature=-0.5", "--temperature must be above 0"),
    ("--top_p 3", "--top_p must be above 0 and at most 1"),
    ("--max_completion_length 0", "--max_completion_length must be at least 1"),
    ("--max_steps 0", "--max_steps must be at least 1"),
    ("--num_train_epochs 0", "--num_train_epochs must be above 0"),
    ("--seed -3", "--seed must be 0 or more"),
    ("--lora_r 0 --use_peft", "--lora_r must be at least 1"),
    ("--evaluate_every 0", "--evaluate_every must be at least 1 step"),
    ("--learning_rate abc", "--learning_rate must be a number, got 'abc'"),
    ("--learning-rate=abc", "--learning-rate must be a number, got 'abc'"),
    ("--learning_rate=", "--learning_rate must be a number, got ''"),
    ("--max_steps 1.5", "--max_steps must be a whole number, got '1.5'"),
    ("--num_generations many", "--num_generations must be a whole number"),
    ("--use_vllm maybe", "--use_vllm must be true or false, got 'maybe'"),
    ("--bf16 perhaps", "--bf16 must be true or false"),
    ("--no_leave_own_out=1", "--no_leave_own_out takes no value"),
    ("--learning_rate", "--learning_rate has no value"),
    ("--reward", "--reward has no value"),
    ("--algo", "--algo has no value"),
    ("--model_name_or_path=", "--model_name_or_path is empty"),
    ("--output_dir=", "--output_dir is empty"),
    ("--dataset_name=", "--dataset_name is empty"),
    ("--algo strace", "unknown algorithm 'strace': did you mean 's_trace'?"),
    ("--algo GRPO", "did you mean 'grpo'?"),
    ("--algo zzz", "choose one of grpo, dapo"),
    ("--trace_lamda 0.3", "unknown flag '--trace_lamda': did you mean '--trace_lambda'?"),
    ("--learning_rat 1", "unknown flag '--learning_rat': did you mean '--learning_rate'?"),
    ("-lr 1", "unknown flag '-lr'"),
    ("--qqqqq 1", "unknown flag '--qqqqq': --help lists them"),
    ("grpo", "'grpo' stands behind no flag"),
    ("--selector entropyy", "--selector must be one of", "did you mean 'entropy'?"),
    ("--importance lambda", "did you mean 'lambda_trace'?"),
    ("--loss_type dpao", "--loss_type='dpao' is unknown: did you mean 'dapo'?"),
    ("--lr_scheduler_type consine", "--lr_scheduler_type has no choice 'consine': did you mean 'cosine'?"),
    ("--evaluation_protocol demo_gredy", "--evaluation_protocol='demo_gredy' is unknown: did you mean 'demo_greedy'?"),
    ("--trace_lambda 1.5 --algo s_trace", "--trace_lambda must be in [0, 1], got 1.5"),
    ("--fp16 --bf16 true", "At most one of --fp16 and --bf16 can be True"),
    ("--model_init_kwargs {", "--model_init_kwargs: Expecting property name"),
    ('--model_init_kwargs {"foo":1} --dataset_name demo', "--model_init_kwargs: ", "'foo'"),
    ('--accelerator_config {"foo":1}', "--accelerator_config: ", "'foo'"),
    ("--deepspeed none.json", "--deepspeed: "),
    ("--fsdp foo", "--fsdp: Unknown `fsdp` option: foo"),
    ("--lr_scheduler_type warmup_stable_decay", "--lr_scheduler_kwargs: ", "num_decay_steps"),
    ("--optim paged_adamw_8bit", "bitsandbytes"),
    ("--config", "--config has no value"),
    ("--config none.yaml", "there is no file 'none.yaml'"),
    ("--config folder", "'folder' is a folder: name a YAML file"),
    ("--model_name_or_path Qwen/Qwen3-1.7B", "'Qwen/Qwen3-1.7B' has no data to train on: set --dataset_name"),
    ("--dataset_name demo --model_name_or_path ./none", "--model_name_or_path='./none': there is no such folder"),
    ("--dataset_name demo --model_name_or_path a/b/c", "--model_name_or_path='a/b/c': there is no such folder"),
    ("--dataset_name demo --model_name_or_path file", "--model_name_or_path='file' is a file"),
    ("--dataset_name demo --model_name_or_path folder", "--model_name_or_path='folder' has no config.json"),
    ("--dataset_name demo --model_name_or_path ' a'", "--model_name_or_path=' a' is neither a folder"),
    ("--dataset_name demo --model_name_or_path no/such-model-here", "no folder here and not in the Hub's cache"),
    ("--output_dir file", "--output_dir='file' is a file: name a folder"),
    ("--output_dir file/run", "--output_dir='file/run' lies below 'file', which is a file"),
    ("--output_dir dangling/run", "lies below 'dangling', which is a link to nowhere"),
    ("--output_dir /dev/full", "--output_dir='/dev/full' is a file"),
    ("--output_dir /proc/run", "--output_dir='/proc/run' cannot be written to"),
    ("--learning_rate -1e-5", "--learning_rate must be 0 or more, got -1e-05"),
    ("--no_mask_truncated_completions", "unknown flag '--no_mask_truncated_completions': it is --mask_truncated_compl"),
    ("--scale_rewards False", "--scale_rewards='False' is unknown: choose one of group, batch, none"),
    ("--top_k -5", "--top_k must be at least 1, or 0 (all tokens), got -5"),
    ("--top_k -1", "--top_k must be at least 1"),
    ("--seed 99999999999", "--seed must be 0 or more, and below 2**32"),
    ("--eval_strategy steps", "--eval_strategy='steps' has no data set here", "--evaluation_protocol"),
    ("--model_init_kwargs 3", "--model_init_kwargs must be `name: value` pairs, got '3'"),
    ("--resume_from_checkpoint true", "no complete checkpoint in 'out'", "leave out --resume_from_checkpoint"),
    (
        "--evaluation_protocol demo --evaluate_on aime24",
        "--evaluate_on: 'demo' has no set 'aime24': choose one",
    ),
    (
        '--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {"min_lr":"x"}',
        "--lr_scheduler_kwargs: unsupported operand",
    ),
]


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(("words", "said"), [(words, said) for words, *said in FLAGS], ids=[row[0] for row in FLAGS])
def test_flags(refused, tmp_path, words, said):
    if "/proc" in words and not Path("/proc/self").exists() or "/dev" in words and not Path("/dev/full").exists():
        pytest.skip("of Linux")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    argv = ["--output_dir", "out", *shlex.split(words.replace('"', '\\"'))]
    message = refused(argv)
    assert all(part in message for part in said), message
    assert not (tmp_path / "out" / "README.md").exists() and not list(tmp_path.glob("**/.trl_credit_*"))


BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
FILES = [
    ("max_steps: ten", "max_steps in my.yaml must be a whole number, got 'ten'"),
    ("max_steps: 1.5", "max_steps in my.yaml must be a whole number, got 1.5"),
    ("max_steps: true", "max_steps in my.yaml must be a whole number, got True"),
    ("max_steps:", "max_steps in my.yaml is empty"),
    ("learning_rate: [1, 2]", "learning_rate in my.yaml must be a number, got [1, 2]"),
    ("learning_rate: {a: 1}", "learning_rate in my.yaml must be a number"),
    ("learning_rate: .nan", "learning_rate in my.yaml must be 0 or more, got nan"),
    ("learning_rate: -1", "learning_rate in my.yaml must be 0 or more, got -1.0"),
    ("output_dir: {a: 1}", "output_dir in my.yaml must be text, got {'a': 1}"),
    ("output_dir: 5", 'output_dir in my.yaml must be text, got 5: write it in quotes, "5"'),
    ("use_vllm: maybe", "use_vllm in my.yaml must be true or false, got 'maybe'"),
    ("use_vllm: [true]", "use_vllm in my.yaml must be true or false"),
    ("save_strategy: no", 'got False: write it in quotes, "no"'),
    ("optim: adamw_trch", "optim in my.yaml has no choice 'adamw_trch': did you mean 'adamw_torch'?"),
    ("reward: [[accuracy]]", "reward in my.yaml must be a list of text"),
    ("reward_weights: [a]", "reward_weights in my.yaml must be a list of numbers"),
    ("reward_range: {a: 1}", "reward_range in my.yaml must be a list of numbers"),
    ("gradient_checkpointing_kwargs: 3", "gradient_checkpointing_kwargs in my.yaml must be `name: value` lines"),
    ("algo: strace", "unknown algorithm 'strace' in my.yaml: did you mean 's_trace'?"),
    ("trace_lamda: 0.5", "unknown field 'trace_lamda' in my.yaml: did you mean 'trace_lambda'?"),
    ("per_device_train_batch_size: 0", "per_device_train_batch_size in my.yaml must be at least 1"),
    ("trace_lambda: 3\nalgo: grpo_lambda", "trace_lambda in my.yaml must be in [0, 1], got 3.0"),
    ("beta: 0.1\nbeta: 0.2", "(line 2): 'beta' stands in line 1 already"),
    ("about: {what: a, what: b}", "'what' stands in line 1 already"),
    ("1: 2", "1 in 'my.yaml' is no name of a setting"),
    ("? [a, b]\n: 1", "cannot be read as YAML"),
    ("- 1", "must hold `name: value` lines"),
    ("just words", "must hold `name: value` lines"),
    ("beta: [", "'my.yaml' cannot be read as YAML (line 1)"),
    ("\tbeta: 1", "'my.yaml' cannot be read as YAML (line 1)"),
    ("beta: !!python/object/apply:os.system [ls]", "'my.yaml' cannot be read as YAML (line 1)"),
    ("base: 5", "`base` in 'my.yaml' must be a file"),
    ("base: [none.yaml]", "there is no file 'none.yaml'"),
    ("base: my.yaml", "is its own `base`"),
    ("beta: 2025-13-45", "'my.yaml' cannot be read as YAML"),
    ("x: &x [*x]", "holds an alias of what it is in"),
    ("a: &a [x, x, x, x, x, x, x, x, x]\n" + BOMB, "stands for more than 10,000 values"),
    ("x: " + "[" * 5000, "nested too deep"),
    ("x: " + "y" * 200_000, "is larger than"),
    ("beta: \x00", "cannot be read as YAML"),
]


@pytest.mark.hostile(KIND, "survived")
def test_powers_of_ten_are_numbers_wherever_they_stand(tmp_path, record_property):
    file = tmp_path / "my.yaml"
    file.write_text(
        "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}\nlearning_rate: 1e-5\n"
        'run_name: 1e5\ngeneration_kwargs: {min_p: [1e-1], text: "1e5"}\nreward_weights: [-1e-3]\n'
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
        "took longer than --reward_timeout=1.0 seconds for 8 responses",
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
}


@pytest.mark.hostile("reward functions", "refused")
@pytest.mark.parametrize("name", REWARDS)
def test_what_a_reward_does_in_the_first_batch(refused, tmp_path, monkeypatch, name):
    source, *said = REWARDS[name]
    monkeypatch.setattr(watchdog, "GRACE", 120.0)  # on a machine that stands still this process must not be killed
    limit = "1" if name == "late" else "60"
    (tmp_path / "f.py").write_text(source)
    message = refused([*QUICK, "--reward", f"f.py:{name}", "--reward_timeout", limit, "--disable_tqdm", "true"])
    assert all(part in message for part in said), message


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(("text", "said"), FILES, ids=[text[:30] for text, _ in FILES])
def test_yaml(refused, tmp_path, text, said):
    (tmp_path / "my.yaml").write_text(text)
    argv = ["--config", "my.yaml"] if "output_dir" in text else ["--config", "my.yaml", "--output_dir", "out"]
    assert said in refused(argv)


@pytest.mark.hostile(KIND, "refused")
def test_a_binary_file_is_no_configuration(refused, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(128, 256)))
    assert "it is no text in UTF-8" in refused(["--config", "model.safetensors"])


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("flags", "processes", "size", "fixes"),
    [
        ("--num_generations 7", 1, 64, ["--num_generations=8", "--per_device_train_batch_size=63"]),
        ("--num_generations 7 --gradient_accumulation_steps 7 --per_device_train_batch_size 3", 1, 21, None),
        ("--num_generations 6 --gradient_accumulation_steps 2", 1, 128, ["--per_device_train_batch_size=63"]),
        ("--num_generations 12", 2, 128, ["--num_generations=16", "--per_device_train_batch_size=66"]),
        ("--num_generations 7 --generation_batch_size 128", 1, 128, ["--num_generations=8"]),
        ("--num_generations 5 --steps_per_generation 2", 1, 128, ["--num_generations=4"]),
    ],
)
def test_groups_that_do_not_fill_the_batch(refused, monkeypatch, tmp_path, flags, processes, size, fixes):
    monkeypatch.chdir(tmp_path)
    if processes > 1:
        monkeypatch.setenv("WORLD_SIZE", str(processes))
    if fixes is None:  # which fit
        assert train.parse_arguments([*flags.split(), "--output_dir", "out"])[2].generation_batch_size == size
        return
    message = refused([*flags.split(), "--output_dir", "out"])
    assert f"does not divide the {size} responses" in message
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for fix in fixes:
        assert fix in message
        if processes == 1:  # what is proposed is taken
            train.parse_arguments([*flags.split(), *fix.split("="), "--output_dir", "out"])


@pytest.mark.hostile(KIND, "survived")
def test_what_is_no_mistake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(
        "learning_rate: 1e-5\nmax_steps: 7\nsave_strategy: 'no'\nreport_to: none\nscale_rewards: false\n"
        "beta: &b 0\nepsilon: *b\nuse_vllm: false\nmax_prompt_tokens: null\nreward: demo\ntree_branching: [2, 2]\n"
        "algo: spo_tree\ngeneration_kwargs: {do_sample: true}\nresume_from_checkpoint: true\n"
    )
    argv = "--config a.yaml --beta 0.1 --beta=0.3 --log-completions --output_dir out --max_steps 8"
    script, data, args, _, _ = train.parse_arguments(argv.split())
    assert (args.learning_rate, args.max_steps, args.beta, args.epsilon) == (1e-5, 8, 0.3, 0.0)
    assert script.reward == ["demo"] and args.log_completions and data.max_prompt_tokens is None
    assert args.scale_rewards == "none" and args.generation_kwargs == {"do_sample": True}


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--samples abc", "--samples must be a whole number, got 'abc'"),
        ("--samples", "--samples has no value"),
        ("--protocl demo", "unknown flag '--protocl': did you mean '--protocol'?"),
        ("--protocol demo_gredy", "unknown --protocol 'demo_gredy': did you mean 'demo_greedy'?"),
        ("--protocol demo --output_dir file", "--output_dir='file' is a file"),
        ("--protocol demo --output_dir file/x", "--output_dir='file/x' lies below 'file'"),
        ("nowhere --protocol demo", "'nowhere' is neither a folder nor found on the Hub"),
    ],
)
def test_evaluation(refused, tmp_path, words, said):
    (tmp_path / "file").write_text("")
    assert said in refused([*words.split(), "--quiet"], script=evaluate)


# Ctrl-C


def reward_file(folder: Path, at: str, *, before: str = "", call: int = 3) -> list[str]:
    """Flags for a reward that does something in one of its calls."""
    (folder / "mine.py").write_text(
        f"import os, resource, signal, time\ncalls = 0\n{before}\n"
        "def mine(completions, **kwargs):\n"
        "    global calls\n    calls += 1\n"
        f"    if calls == {call}:\n        {at}\n"
        "    return [float(len(set(c))) for c in completions]\n"
    )
    return ["--reward", "mine.py:mine", "--output_dir", "out", "--save_steps", "1", "--max_steps", "4", *QUICK]


SEND = "os.kill(os.getpid(), signal.{})"


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize(("name", "code", "cause"), [("SIGINT", 130, "Ctrl-C"), ("SIGTERM", 143, "SIGTERM")])
def test_an_interrupted_run_says_how_it_goes_on(tmp_path, monkeypatch, capsys, name, code, cause):
    monkeypatch.chdir(tmp_path)
    # as they are in a shell: a test before this one may have started a command in this process
    handlers = [signal.default_int_handler, signal.SIG_DFL]
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
        signal.signal(number, handler)
    argv = [*reward_file(tmp_path, SEND.format(name)), "--hub_token", "hf_secretsecretsecretsecret"]
    with pytest.raises(SystemExit) as stop:
        train.main(argv)
    assert stop.value.code == code
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "hf_secret" not in said.err
    line = said.err.strip().splitlines()[-1]
    assert line.startswith(f"interrupted at step 2 of 4 ({cause}): the last checkpoint is out/checkpoint-2; plots and")
    folder = tmp_path / "out"
    assert {"README.md", "recipe.yaml", "reward_curve.png", "credit_plot.png"} <= {p.name for p in folder.iterdir()}
    assert not (folder / "model.safetensors").exists() and "2 optimizer steps" in (folder / "README.md").read_text()
    again = shlex.split(line.partition("go on with: ")[2])
    train.main(again[2:])  # without python and the script
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    assert [row["step"] for row in state["log_history"] if "reward" in row] == [1, 2, 3, 4]


@pytest.mark.hostile(KIND, "survived")
def test_a_reward_that_swallows_ctrl_c_ends_with_its_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    swallows = f"\n        try:\n            {SEND.format('SIGINT')}; time.sleep(1)\n        except:\n            pass"
    with pytest.raises(SystemExit) as stop:
        train.main([*reward_file(tmp_path, swallows, call=1), "--save_strategy", "no"])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 130 and line.startswith("interrupted at step 1 of 4 (Ctrl-C): no checkpoint yet")


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("when", ["loading", "first batch"])
def test_ctrl_c_before_the_first_step(tmp_path, monkeypatch, capsys, when):
    monkeypatch.chdir(tmp_path)
    now = SEND.format("SIGINT")
    argv = reward_file(tmp_path, "pass" if when == "loading" else now, before=now if when == "loading" else "", call=1)
    with pytest.raises(SystemExit) as stop:
        train.main(argv)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 130 and line.startswith("interrupted before the first step (Ctrl-C): nothing was ")
    assert not (tmp_path / "out" / "README.md").exists()


# in pieces: Python does not hear a signal that comes just before a sleep begins until it has ended
ASLEEP = "for _ in range(600): time.sleep(0.1)"


def start(code: str) -> subprocess.Popen:
    """Another Python, which imports neither torch nor TRL, once it says that it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(Path(trl_credit.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


@pytest.mark.hostile(KIND, "survived")
def test_a_second_ctrl_c_ends_at_once():
    process = start(
        "import time\nfrom trl_credit.signals import StopSignals\n"
        f"with StopSignals():\n    try:\n        print('ready', flush=True)\n        {ASLEEP}\n"
        f"    except KeyboardInterrupt:\n        print('writing', flush=True)\n        {ASLEEP}\n"
    )
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGTERM)  # which says no more than the first did
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "") and process.returncode == 130


@pytest.mark.hostile(KIND, "survived")
def test_ctrl_c_while_libraries_are_imported():
    process = start(
        "import time\nfrom trl_credit.startup import begin\nbegin()\nprint('ready', flush=True)\n"
        f"try:\n    {ASLEEP}\nexcept BaseException:\n    pass\n"  # as an import may swallow it
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.strip() == "interrupted while loading: nothing was trained or written" and process.returncode == 130


def test_the_command_as_a_shell_takes_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["examples/train.py"])
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    words = ["--reward", "my file.py:f", "--hub-token=hf_x", "--hub_token", "hf_y", "--beta", "1"]
    assert StopSignals().command(words) == "accelerate launch examples/train.py --reward 'my file.py:f' --beta 1"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert StopSignals().command([]) == "accelerate launch … examples/train.py"


# A full disk


@contextmanager
def limit_of_files(size=None):
    """The largest size of a file, beyond which a write fails as on a full disk. Ends with the block, not with the test:
    pytest may be writing to a file itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.hostile(KIND, "refused")
def test_a_full_disk_before_the_start(tmp_path):
    check_output_dir(tmp_path / "run" / "one")
    refusal = pytest.raises(ValueError, match="^output_dir='.*one' is on a full disk: make room, or name another$")
    with refusal, limit_of_files(100):
        check_output_dir(tmp_path / "run" / "one")
    assert not list(tmp_path.iterdir())  # neither try left anything


@pytest.mark.hostile(KIND, "survived")
def test_a_full_disk_in_the_middle_of_a_save(refused, tmp_path):
    full = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))"
    with limit_of_files():
        message = refused(reward_file(tmp_path, full, call=2), code=1)
    assert message.startswith("disk full in 'out': the last whole checkpoint is out/checkpoint-1; make room, and go on")
    assert message.endswith("--resume_from_checkpoint true")
    assert last_checkpoint("out").name == "checkpoint-1"


@pytest.mark.hostile(KIND, "survived")
def test_a_full_disk_after_the_model_was_saved(refused, tmp_path, monkeypatch):
    save = Ending.save_model

    def saved_to_the_last_byte(self):
        save(self)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    monkeypatch.setattr(Ending, "save_model", saved_to_the_last_byte)
    with limit_of_files():
        message = refused(reward_file(tmp_path, "pass"), code=1)
    assert message.startswith("disk full in 'out': the model there is whole, and has no plots and no card")
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in left and not left & set(RESULTS)


def test_what_says_that_a_disk_is_full():
    for error in (
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/1"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("Error while serializing: I/O error: File too large (os error 27)"),
    ):
        assert disk_full(error)
    try:
        try:
            raise OSError(122, "Disk quota exceeded")
        except OSError as error:
            raise RuntimeError("the card") from error
    except RuntimeError as error:
        assert disk_full(error)
    assert not disk_full(FileNotFoundError(2, "No such file")) and not disk_full(ValueError("full"))


# The start


def test_only_what_nobody_can_act_on_is_quiet():
    vllm = "TRL currently supports vLLM versions from 0.22.0 to 0.31.0. You have version 0.32.0 installed."
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        quiet_start()
        warnings.warn(vllm, UserWarning, stacklevel=1)
        for name in ("gradient_checkpointing", "is_gradient_checkpointing", "gradient_checkpointing_enable"):
            warnings.warn(f"`{name}` is deprecated and will be removed in v6. Use …", FutureWarning, stacklevel=1)
        warnings.warn("ours", UserWarning, stacklevel=1)
        assert [str(w.message) for w in shown] == ["ours"]
        show_vllm_version()
        warnings.warn(vllm, UserWarning, stacklevel=1)
        assert str(shown[-1].message) == vllm


@pytest.mark.hostile(KIND, "survived")
def test_a_run_that_was_ended_between_its_last_checkpoint_and_its_weights(tmp_path, capsys):
    """It is at its end, and what its folder holds are the weights of an earlier end."""
    argv = [*QUICK, "--output_dir", str(tmp_path), "--max_steps", "1", "--save_steps", "1", "--report_to", "none"]
    train.main(argv)
    weights = tmp_path / "model.safetensors"
    right = weights.read_bytes()
    resumed = [*argv, "--resume_from_checkpoint", "true"]
    weights.write_bytes(b"old")
    train.main(resumed)
    assert weights.read_bytes() == b"old"  # of a run that is at its end nothing is written again
    os.utime(weights, (0, 0))
    train.main(resumed)
    assert weights.read_bytes() == right
