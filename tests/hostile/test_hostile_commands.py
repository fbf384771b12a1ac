"""Mistakes on the command line of each part of `trl-credit`: one line that names the fix, and nothing is written."""

import importlib.util
import json
import shlex
from datetime import date

import pytest
from datasets import Dataset
from evaluation_helpers import stored
from script_helpers import error_of
from viewer_helpers import s_trace

from trl_credit import cli
from trl_credit.observe.schema import shard_path, write_shard


RIGHT, WRONG = [[True, False]] * 6, [[False, False]] * 6
RECIPE = "s_trace/qwen3_4b_random_mask"
NO_VLLM = [] if importlib.util.find_spec("vllm") else [("--backend vllm", "--backend vllm needs vllm: pip install")]
# by the words that come first: what follows them, and a part of the message
MISTAKES = {
    "": [("rain", "trl-credit has no command 'rain': did you mean 'train'?")],
    "compare": [
        ("", "there is nothing to compare"),
        ("--algo s_trac", "'s_trac' is no algorithm: did you mean 's_trace'?"),
        ("--algo grpo grpo", "'grpo' is given twice"),
        ("--algo 's_trace --selector random'", "give it a name, NAME=s_trace --selector random"),
        ("--algo a/b=grpo", "the name 'a/b' also names a folder"),
        ("--algo grpo --seeds 1 1", "--seeds names a seed twice"),
        ("--algo grpo --seeds x", "--seeds: invalid int value: 'x'"),
        ("--algo grpo --jobs 0", "--jobs must be at least 1"),
        ("--algo grpo s_trace --tree_branching 4", "--tree_branching does nothing for any of these algorithms"),
        ("--algo grpo s_trace --lora_r 8", "lora_r=8 does nothing, since use_peft=False"),
        ("--algo grpo --seed 3", "--seed is set by the comparison for each run"),
        ("--algo grpo --push_to_hub true", "a comparison pushes nothing"),
        ("--algo grpo --save_strategy no", "grpo: save_strategy='no' leaves no checkpoint"),
        ("--algo grpo --lerning_rate 1", "grpo: unknown flag '--lerning_rate': did you mean '--learning_rate'?"),
        ("--algo grpo --baseline gspo", "--baseline 'gspo' is not among the algorithms"),
        ("--algo grpo --config none.yaml", "there is no file 'none.yaml'"),
        ("--credit none.py:f", "f: credit"),
        ("--runs none", "there is no folder 'none'"),
        ("--runs none --algo grpo", "--runs trains nothing: leave out --algo"),
        ("--runs none --beta 0", "--runs trains nothing: leave out --beta"),
    ],
    "recipes": [
        ("show s_trace/qwen3_4b_s_trac", "there is no recipe 's_trace/qwen3_4b_s_trac': did you mean 's_trace/"),
        ("show qwen3_4b_random_mask", f"did you mean '{RECIPE}'?"),
        ("show xyzzy", "there is no recipe 'xyzzy': `recipes` lists them"),
        ("show", "`show NAME` takes the name of one recipe: `recipes` lists them"),
        ("path a b", "`path NAME` takes the name of one recipe"),
        (f"path {RECIPE}", "has no file: `show`"),
        ("gspo --resolved", "--resolved goes with `show NAME`"),
        ("--resolve", "unknown flag '--resolve': did you mean '--resolved'?"),
    ],
    "train --algo grpo": [
        ("--config gspo/qwen3_30b_gspo", "no such recipe: did you mean 'gspo/qwen3_30b_a3b_gspo'?"),
        ("--config s_trace/qwen3_4b_s_trac", "and no such recipe: did you mean 's_trace/qwen3_4b_s_trace'?"),
        ("--config examples/recipes/gspo/qwen3_30b_a3b_gspo.yaml", "did you mean 'gspo/qwen3_30b_a3b_gspo'?"),
        ("--config qwen3_4b_random_mask", f"did you mean '{RECIPE}'?"),
        ("--config no.yaml", "there is no file 'no.yaml': check --config"),
        ("--accelerate_config zero4", "--accelerate_config 'zero4' is neither a file nor a name: did you mean"),
        ("--accelerate_config", "--accelerate_config: expected one argument"),
        ("--num_processes 2", "--num_processes is for accelerate's launcher: set --accelerate_config too"),
    ],
    "train --output_dir out --reward mine.py:mine --dataset_name": [
        ("absent.jsonl", "there is no file 'absent.jsonl': check --dataset_name"),
        ("mine.jsonl", "there is no file 'mine.jsonl': check --dataset_name"),
        ("./mined", "there is no file './mined'"),
        ("folder", "'folder' is no .jsonl"),
        ("mine.py", "'mine.py' is no .jsonl"),
        ("math50", "did you mean 'math500'?"),
        ("mined.jsonl --prompt_column promt", "--prompt_column to one of prompt, answer: did you mean 'prompt'?"),
        ("mined.jsonl --answer_column gold", "no column 'gold': set --answer_column to one of prompt, answer"),
        ("mined.jsonl --dataset_split test", "leave out --dataset_revision, --dataset_config and"),
        ("mined.jsonl --dataset_name columns.jsonl", "'columns.jsonl' has no column 'prompt' or 'problem' or"),
        ("columns.jsonl --prompt_column q --reward accuracy", "has no column 'answer' or 'solution' or 'target': set"),
        ("gsm8k --data_dir folder", "no 'gsm8k' in 'folder'"),
        ("gsm8k --data_dir sets", "is not the set 'gsm8k': row 0: there is no column problem or question"),
        ("own/set", "--dataset_name 'own/set' cannot be loaded from the Hub"),
    ],
    "plan": [
        ("--model_name_or_path me/x", "no configuration of 'me/x' is in a folder or in the cache of the Hub"),
        ("s_trace/qwen3_4b_s_trac", "did you mean 's_trace/qwen3_4b_s_trace'?"),
    ],
    "plan embedded": [
        ("--parameters 1.5B", "set --layers"),
        ("--parameters many --layers 2 --hidden_size 8", "such as 1.5B or 350M, got 'many'"),
        ("--parameters 1M --layers 2 --hidden_size 512", "--parameters 1M is too few"),
        ("--layers 3", "--layers goes with --parameters"),
        ("--num_processes 0", "--num_processes must be at least 1, got 0"),
        ("--num_processes two", "--num_processes: invalid int value: 'two'"),
        ("--tflops -3", "--tflops must be above 0 and finite, got -3"),
        ("--response_length nan", "--response_length must be above 0"),
        ("--response_lenght 3", "unknown flag '--response_lenght': did you mean '--response_length'?"),
        ("--rates_from runs/none", "there is no folder 'runs/none'"),
        ("--rates_from a --tflops 3", "--rates_from has rates: leave out --tflops"),
        ("--accelerate_config zero9", "--accelerate_config 'zero9' is neither a file nor a name"),
    ],
    "explain": [
        ("nowhere", "nowhere does not exist: give the folder of a run, a shard of its log, or a JSONL file"),
        ("rollouts.jsonl --algo s_trase", "did you mean"),
        ("rollouts.jsonl --reward mine.py:f", "give --model"),
        ("rollouts.jsonl --temperature 0", "--temperature must be positive"),
        ("rollouts.jsonl --output x.txt", "must end in .html"),
        ("rollouts.jsonl --output nowhere/x.html", "there is no folder nowhere"),
        ("rollouts.jsonl --step 3", "is a file, which has no steps"),
    ],
    "view": [
        ("", "required"),
        ("nowhere", "nowhere does not exist"),
        ("a", "has no rollout log"),
        ("run --step 15", "--step 15 was not logged in run: it has steps 10, 20"),
        ("run --step x", "--step"),
        ("run --response 3", "write GROUP/INDEX"),
        ("run --response 9/9", "not in step 20: it has 0/0, 0/1"),
        ("run --output page.txt", "must end in .html"),
        ("run --output no/such/page.html", "there is no folder"),
        ("run --terminal --open", "leave out --open"),
        ("run --stpe 1", "did you mean '--step'"),
    ],
    "push": [
        ("no_such --repo_id me/x", "there is no folder 'no_such'"),
        ("a --repo_id me/x", "'a' holds no model"),
        ("text --repo_id me/x", "'text' holds no model"),
        ("model --repo_id me/x/y", "me/x/y"),
        ("model --repo_id 'bad name'", "bad name"),
    ],
    "eval": [
        ("a a", "two models or more, each named once, got a a"),
        ("a a/samples/a", "have the same samples, a/samples/a/demo-demo.jsonl: name two models"),
        ("a none", "none"),
        ("a two", "'two' holds samples of 2 models: name one of them, two/samples/m or two/samples/n"),
        ("a b --models c", "give models either with --models, or before all flags"),
        ("a b --rescore", "--rescore judges all samples in --output_dir and takes no models"),
        ("a two/samples/m --samples 4", "--samples needs a --protocol to sample with"),
        ("a two/samples/m --prompt_style text", "--prompt_style needs a --protocol to sample with"),
        ("a two/samples/m --protocol demo --seed 4", "--seed needs a model to sample with"),
        ("a two/samples/m --sets gsm8k", "nothing to compare: no samples of these sets and protocols"),
        ("a two/samples/m --metrics pass@3", "--metrics pass@3 needs 3 samples per problem"),
        ("a two/samples/m --metrics pass", "--metrics 'pass' must be pass@k"),
        ("--protocol demo a b", "unknown --protocol 'a'"),
        ("a --quiet b", "'b' follows no flag"),
        ("--protocol s-trace", "unknown --protocol 's-trace': did you mean 's_trace'?"),
        ("--protocol s_trace --sets gsm8k", "has the sets math500, aime24"),
        ("--protocol custom", "--protocol custom needs --samples, --temperature, --max_new_tokens"),
        ("--models x", "--models needs a --protocol"),
        ("--samples abc", "--samples: invalid int value: 'abc'"),
        ("--samples", "--samples: expected one argument"),
        ("--protocl demo", "unknown flag '--protocl': did you mean '--protocol'?"),
        ("--protocol demo_gredy", "unknown --protocol 'demo_gredy': did you mean 'demo_greedy'?"),
        ("nowhere --protocol demo", "'nowhere' is neither a folder nor found on the Hub"),
    ],
    "eval --protocol demo": [
        ("--models ./no_such", "no_such"),
        ("--data_dir nowhere --sets gsm8k --models no/such", "there is no folder 'nowhere': check --data_dir"),
        ("--output_dir e.jsonl/x", "--output_dir='e.jsonl/x' cannot be written to"),
        ("--temperature -1", "--temperature must be a number from 0 to 10, got -1.0"),
        ("--temperature nan", "--temperature must be"),
        ("--temperature 0", "--temperature 0 gives the same response 16 times"),
        ("--top_p 0", "--top_p must be in (0, 1], got 0.0"),
        ("--top_k -1", "--top_k must be 0 (off) or more"),
        ("--samples 0", "--samples must be at least 1"),
        ("--samples 4", "--metrics pass@16 needs 16 samples"),
        ("--max_new_tokens 0", "--max_new_tokens must be at least 1"),
        ("--max_context 9", "within 9: raise --max_context"),
        ("--max_problems 0", "--max_problems must be at least 1"),
        ("--batch_size 0", "--batch_size must be at least 1"),
        ("--backend sglang", "unknown --backend 'sglang'"),
        *NO_VLLM,
        ("--tensor_parallel_size 2", "--tensor_parallel_size needs --backend vllm"),
        ("--revision main", "--revision is for models on the Hub"),
        ("--rescore", "there are no finished samples"),
    ],
    "eval --protocol custom --samples 1 --temperature 1 --max_new_tokens 9 --sets": [
        ("none.jsonl", "there is no file 'none.jsonl': check --sets"),
        ("nan.jsonl", "'nan.jsonl' cannot be read as json: column 'answer': nan"),
        ("columns.jsonl", "has no column 'prompt' or 'problem' or 'question': rename one of q, a"),
        ("dates.parquet", "row 0 of 'dates.parquet', column 'level': Object of type date is not JSON"),
        ("e.jsonl.txt", "'e.jsonl.txt' is no .jsonl, .json, .parquet, .arrow, .csv file: check --sets"),
        ("e.jsonl --prompt_style x", "--prompt_style 'x'"),
        ("e.jsonl", "row 1 of 'e.jsonl' has no answer"),
    ],
}
TEXTS = {
    "comparison/.compare.lock": "",  # which `compare` takes before it reads its flags
    "text/README.md": "x",
    "model/config.json": "{}",
    "model/model.safetensors": "",
    "mine.py": "def mine(completions, **kwargs):\n    return [0.0 for _ in completions]\n",
    "mined.jsonl": '{"prompt": "1+1=", "answer": "2"}\n',
    "folder/in.csv": "prompt,answer\n1+1=,2\n",
    "sets/gsm8k.jsonl": '\n{"q": "x", "answer": "#### 1"}\n',
    "e.jsonl": '{"problem": "1+1", "answer": "2"}\n{"problem": "1+2", "answer": ""}\n',
    "nan.jsonl": '{"problem": "1+1", "answer": 2.5}\n{"problem": "1+2", "answer": NaN}\n',
    "columns.jsonl": '{"q": "1+1", "a": 2}\n',
    "e.jsonl.txt": "1+1=2",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with something for each command to read."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    row = {"prompt": "1+1=", "completion": "ab", "logprobs": [-1, -2], "entropy": [1, 2]}
    (folder / "rollouts.jsonl").write_text("\n".join(json.dumps(row | {"reward": reward}) for reward in (0, 1)))
    dated = Dataset.from_list([{"problem": "1+1", "answer": "2", "level": date(2020, 1, 2)}])
    dated.to_parquet(folder / "dates.parquet")
    for step in (10, 20):
        write_shard(shard_path(folder / "run", step), s_trace(step))
    for name, model, verdicts in (("a", "a", RIGHT), ("two", "m", WRONG), ("two", "n", RIGHT)):
        stored(folder / name, model, verdicts)
    return folder


@pytest.mark.hostile("mistakes on the command line", "refused")
@pytest.mark.parametrize(
    ("words", "said"), [(f"{first} {words}", said) for first, rows in MISTAKES.items() for words, said in rows]
)
def test_a_mistake_is_one_line_and_writes_nothing(files, monkeypatch, capsys, words, said):
    monkeypatch.chdir(files)
    before = set(files.rglob("*"))
    assert said in error_of(cli.main, shlex.split(words), capsys)
    assert set(files.rglob("*")) <= before
