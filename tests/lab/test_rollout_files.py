"""Rollouts of others: JSONL rows, and what verifiers saved (made by tests/helpers/make_verifiers_rollouts.py), which
examples/verifiers_rollouts converts to them."""

import json
from pathlib import Path

import pytest
from scripts import load_script

from trl_credit.demo import demo_model_path
from trl_credit.lab.rollout_files import read_file
from trl_credit.lab.viewer.runs import read_run
from trl_credit.observe.schema import Shard


script = load_script("examples/verifiers_rollouts/verifiers_rollouts.py")
SAVED = Path(__file__).parents[1] / "data" / "verifiers"
TRAINED, EVALUATED = SAVED / "trained.jsonl", SAVED / "evaluated.jsonl"
HEADER = {"algorithm", "model", "temperature", "note"}
LOGPROBS = ("logprobs", "trainer_logprobs", "entropies", "advantages", "loss_weights")


def nodes_of(episode: dict) -> list[dict]:
    return [node for trace in episode["traces"] for node in trace["nodes"]]


def converted(path: Path) -> Path:
    """The JSONL rows of a file of verifiers."""
    script.main([str(path), str(path.with_name("rollouts.jsonl"))])
    return path.with_name("rollouts.jsonl")


def read_rows(path: Path) -> Shard:
    return read_file(converted(path))


@pytest.fixture
def changed(tmp_path):
    """A copy of a file of verifiers, after `change` of each of its episodes."""

    def write(change=lambda episode: None, source: Path = TRAINED, name: str = "traces.jsonl") -> Path:
        episodes = [json.loads(line) for line in source.read_text().splitlines()]
        for episode in episodes:
            change(episode)
        (tmp_path / name).write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
        return tmp_path / name

    return write


def test_rollouts_of_verifiers(changed):
    shard = read_rows(changed())
    first = [response for response in shard.responses if response["group"] == 0]
    assert [response["reward"] for response in first] == [1.0, 0.0, 1.0, 0.0]
    assert shard.header["model"] == "demo" and shard.header["temperature"] == 1.0 and "'rl'" in shard.header["note"]
    right, halved = first[:2]
    assert right["completion"] == "3+2=5;5-1=4" and right["answer"] == "4" and right["prompt"][0]["content"] == "3+2-1:"
    assert len(right["token_ids"]) == 12 and right["credit"] == right["advantages"] == [0.5] * 12
    assert halved["advantages"] == [-0.5] * 12 and halved["credit"] == [-0.25] * 12  # its weight "rl" is 0.5
    assert right["old_logprobs"][4] == right["inference_logprobs"][4] == -0.6931
    assert right["trainer_logprobs"][4] == -0.6951 and right["entropy"][4] == 0.69 and right.get("ref_logprobs") is None


def test_nothing_that_the_script_writes_is_lost(changed):
    def change(episode):
        episode.update(run={"work": {"step": 7}}, group={"id": "a"})  # different prompts, one group
        for node in nodes_of(episode):
            if node.get("logprobs"):
                node.update(reference_logprobs=[x + 0.0123456789 for x in node["logprobs"]])
        data = episode["traces"][0]["task"]["data"]
        data.update(header="h", step="s", model="m", logprobs="l", group="g", turn_ids=3, index=5)

    path = changed(change)
    header, rows = script.read_verifiers(path)
    shard = read_rows(path)
    assert shard.header == header | {"run": "rollouts.jsonl"} and set(header) == {*HEADER, "step"}
    assert [response.pop("index") for response in shard.responses] == list(range(8))
    known = [{name: x for name, x in row.items() if x is not None} for row in rows]
    assert shard.responses == known and {row["group"] for row in rows} == {0}
    assert all({"ref_logprobs", "turn_ids", "policy_mask", "credit", "entropy"} <= row.keys() for row in known)


def test_a_conversation_is_one_response_and_the_user_is_not_in_the_loss(changed):
    response = next(response for response in read_rows(changed()).responses if response["group"] == 1)
    assert [message["role"] for message in response["completion"]] == ["assistant", "user", "assistant"]
    mask = [1] * 6 + [0] * 4 + [1] * 6
    assert response["loss_mask"] == response["policy_mask"] == mask
    assert response["turn_ids"] == [0] * 6 + [-1] * 4 + [1] * 6
    assert response["credit"] == [0.5 * x for x in mask]
    assert [x is None for x in response["old_logprobs"]] == [not x for x in mask]
    assert response["rewards"] == {"right": 1.0, "short": 1.0} and response["reward"] == pytest.approx(1.1)


def test_where_conversations_fork_a_token_is_in_the_loss_once(changed):
    first, second = (response for response in read_rows(changed()).responses if response["group"] == 2)
    assert first["token_ids"][:6] == second["token_ids"][:6]
    assert first["loss_mask"][:6] == [1] * 6 and second["loss_mask"][:6] == [0] * 6
    assert sum(second["loss_mask"]) == 18  # its two other turns


@pytest.mark.parametrize("value", ["null", "missing"])
@pytest.mark.parametrize("name", LOGPROBS)
def test_every_list_may_be_unknown(changed, name, value):
    def change(episode):
        for node in nodes_of(episode):
            node.pop(name, None)
            if value == "null":
                node[name] = None

    responses = read_rows(changed(change)).responses
    first = responses[0]
    if name == "advantages":
        assert "credit" not in first and "policy_mask" not in first
    elif name == "loss_weights":
        assert all(response["credit"] == response["advantages"] for response in responses)
    elif name == "entropies":
        assert first.get("entropy") is None
    else:
        assert first["old_logprobs"][0] == first["trainer_logprobs"][0] == (-0.012 if name == "logprobs" else -0.01)


def test_what_is_known_of_a_part_alone(changed):
    def change(episode):
        last = nodes_of(episode)[-1]
        last |= {"advantages": None, "entropies": [None] + [0.5] * (sum(last["mask"]) - 1)}

    response = next(r for r in read_rows(changed(change)).responses if r["group"] == 1)
    assert response["policy_mask"] == [1] * 6 + [0] * 10 and response["credit"][6:] == [0.0] * 10
    assert response.get("entropy") is None  # 0 would be a claim
    assert response["loss_mask"][10:] == [1] * 6


def test_traces_that_were_not_trained_on_are_left_out(changed):
    def change(episode):
        trace = episode["traces"][0]
        index = trace["task"]["data"]["idx"]
        if index == 1:
            trace["ok"] = False
        if index == 2:
            trace["agent"]["trainable"] = False

    shard = read_rows(changed(change))
    assert {response["group"] for response in shard.responses} == {0} and "3 traces" in shard.header["note"]


def test_groups_are_those_of_the_trainer(changed):
    ids = iter("abababa")
    shard = read_rows(changed(lambda episode: episode.update(group={"id": next(ids)}, run={"work": {"step": 7}})))
    assert [response["group"] for response in shard.responses] == [0, 1, 0, 1, 0, 1, 0, 0]
    assert shard.header["step"] == 7


def set_node(**values):
    return lambda episode: nodes_of(episode)[-1].update(values)


def test_rewards_that_were_not_scored(changed):
    responses = read_rows(changed(lambda episode: episode["traces"][0].update(rewards={"right": None}))).responses
    assert all(response["reward"] is None and response["rewards"] == {} for response in responses)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_node(advantages=[0.5]), r"node 1: advantages has 1 entries for 12 sampled tokens"),
        (set_node(logprobs="x"), "node 1: logprobs must be finite numbers or null, got 'x'"),
        (set_node(entropies=[True] * 12), "entropies must be finite numbers"),
        (set_node(loss_weights={"rl": [1.0]}), "loss_weights 'rl' has 1 entries for 12 tokens"),
        (set_node(loss_weights=[1.0]), "loss_weights must be lists by name"),
        (set_node(parent=5), "node 1: parent must be a node before it, got 5"),
        (set_node(mask=[True]), "12 token_ids and 1 entries of mask"),
        (set_node(token_ids=[-1] * 12), "token_ids must be token ids"),
        (set_node(message="hello"), "message must be a message, got 'hello'"),
        (lambda episode: episode["traces"][0].update(nodes={"a": 1}), "nodes must be a list"),
        (lambda episode: episode["traces"][0].update(rewards={"right": 1}), "reward 'right' must be a score, got 1"),
        (lambda episode: episode["traces"][0].update(calls=3), "calls must be a list, got 3"),
        (lambda episode: episode.update(traces=[3]), "traces must be objects, got 3"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(changed, change, message):
    path = changed(change)
    with pytest.raises(ValueError, match=message) as error:
        script.read_verifiers(path)
    assert str(error.value).startswith(f"{path}:1") and "\n" not in str(error.value)


def test_what_the_script_and_the_reader_say_of_files_of_the_wrong_kind(changed, command_said, capsys, tmp_path):
    path, rows = changed(), tmp_path / "rollouts.jsonl"
    for command in ("view", "explain"):
        code, _, error = command_said(command, path)
        assert code == 2 and f"{path}:1 is an episode of verifiers: convert the file with the script" in error
        assert error.count("\n") == 1
    code, said, _ = command_said(
        "example", error.partition("`trl-credit example ")[2].partition("`")[0], tmp_path / "x"
    )
    assert code == 0 and "  python verifiers_rollouts.py traces.jsonl rollouts.jsonl\n" in said
    damaged = changed(set_node(mask=[True]), name="damaged.jsonl")
    none_left = changed(lambda episode: episode["traces"][0].update(ok=False), name="failed.jsonl")
    for words, message in (
        ((damaged, rows), "damaged.jsonl:1, node 1: 12 token_ids and 1 entries of mask"),
        ((none_left, rows), "failed.jsonl holds no response. Left out: 7 traces"),
        ((tmp_path / "missing.jsonl", rows), "No such file"),
        ((path, path), "is the file to convert: name another one"),
    ):
        with pytest.raises(SystemExit) as stopped:
            script.main([*map(str, words)])
        assert stopped.value.code == 2 and message in capsys.readouterr().err and not rows.exists()


def test_strange_values_of_what_is_not_needed(changed):
    def change(episode):
        episode.update(run={"work": {"step": [1]}}, group={"id": {"a": 1}})
        trace = episode["traces"][0]
        trace.update(calls=[{"model": ["x"], "sampling": {"temperature": "hot"}}, 3], task="t", agent=None)
        for node in trace["nodes"]:
            node["semantic_parents"] = [{"type": [], "node": [1]}, 4]

    shard = read_rows(changed(change))
    assert shard.header["step"] is None and not {"model", "temperature"} & shard.header.keys()
    assert len(shard.responses) == 8 and {response["group"] for response in shard.responses} == {0}


def test_formats_in_one_file(tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text(TRAINED.read_text() + '{"prompt": "a", "completion": "b", "reward": 1}\n')
    with pytest.raises(ValueError, match=r"mixed.jsonl:8 is not an episode of verifiers"):
        script.read_verifiers(path)


def test_rollouts_of_verifiers_on_the_page(changed, command_said, tmp_path):
    path = converted(changed(lambda e: nodes_of(e)[0]["message"].update(content="</script><b>\x1b[31m\ud83d")))
    code, _, error = command_said("view", path)
    assert code == 2 and "lacks the texts of its tokens: give --tokenizer 'demo'" in error
    code, said, _ = command_said("view", path, "--tokenizer", demo_model_path())
    assert code == 0 and str(tmp_path / "rollouts.html") in said
    assert "Credit is the saved advantage times the loss weight" in said
    page = (tmp_path / "rollouts.html").read_text()
    assert (
        "</script><b>" not in page and "Credit is the saved advantage" in page and "'rl'" in page.replace("&#39;", "'")
    )
    shard = read_run(path, tokenizer=demo_model_path())[0][0]
    assert "".join(shard.responses[0]["tokens"]) == "3+2=5;5-1=4<eos>"
    code, _, error = command_said("view", path, "--tokenizer", tmp_path)
    assert code == 2 and "no tokenizer.json can be read" in error and error.count("\n") == 1


def test_a_tokenizer_of_another_model(changed):
    path = changed(lambda episode: [node.update(token_ids=[99] * len(node["mask"])) for node in nodes_of(episode)])
    with pytest.raises(ValueError, match="token id 99 is not one of 18"):
        read_run(converted(path), tokenizer=demo_model_path())


def test_rollouts_of_verifiers_explained(command_said, changed, tmp_path):
    path = converted(changed())
    output = ["--output", tmp_path / "page.html"]
    code, _, error = command_said("explain", path, *output)
    assert code == 2 and "give --model, or --tokenizer" in error
    code, said, _ = command_said(
        "explain", path, "--tokenizer", demo_model_path(), *output, "--algo", "grpo", "s_trace"
    )
    rows = {line.split(" | ")[0].strip("| "): line for line in said.splitlines() if line.startswith("|")}
    assert code == 0 and {"GRPO", "S-trace", "verifiers: A × loss weight, as trained"} <= set(rows)
    clipped = [cell.strip() for cell in rows["verifiers: A × loss weight, as trained"].split("|")][10]
    assert clipped == "–" and "Credit is the saved advantage" in said


def test_rollouts_without_token_ids_need_a_model(command_said, changed, tmp_path):
    path = converted(changed(source=EVALUATED))
    output = ["--output", tmp_path / "page.html"]
    code, _, error = command_said("explain", path, *output)
    assert code == 2 and "has no log-probabilities: give --model" in error
    code, _, error = command_said("view", path)
    assert code == 2 and "holds no credit: trl-credit explain" in error

    # the embedded tokenizer has no chat template, so the prompt is text
    def as_text(episode):
        for node in nodes_of(episode):
            node.update(token_ids=[], mask=[], logprobs=[], advantages=None, trainer_logprobs=None)
            node.update(entropies=None, loss_weights=None)

    path = changed(as_text)
    with pytest.raises(ValueError, match=r"traces.jsonl:5: a conversation of several turns without token ids"):
        script.read_verifiers(path)


# --- JSONL rows ---


def rows(**more) -> list[dict]:
    row = {"prompt": "1+1=", "tokens": ["2", "!"], "completion": "2!"}
    return [row | {"reward": float(i), **more} for i in range(2)]


def written(path: Path, content: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def test_rows_with_credit_on_the_page(tmp_path, command_said):
    path = written(
        tmp_path / "mine.jsonl", rows(credit=[0.5, None], prompt=[{"role": "system", "content": "Be short."}])
    )
    code, said, _ = command_said("view", path)
    assert code == 0 and "mine.html" in said
    assert "system: Be short." in (tmp_path / "mine.html").read_text()
    code, said, _ = command_said("view", path, "--terminal")
    assert code == 0 and "+0.5  2\n" in said and "–  !\n" in said and "None" not in said


def test_advantages_are_shown_where_there_is_no_credit(tmp_path):
    path = written(tmp_path / "mine.jsonl", rows(advantages=[0.5, None]))
    shard = read_file(path)
    assert all(response["credit"] == [0.5, 0.0] for response in shard.responses)
    assert shard.header["note"].startswith("Credit is the advantage of each token")
    both = read_file(written(path, rows(advantages=[0.5, None], credit=[0.1, 0.2])))
    assert all(response["credit"] == [0.1, 0.2] for response in both.responses) and both.header["note"] == ""


def test_rows_that_cannot_be_shown_say_what_to_do(tmp_path, command_said):
    for content, message in (
        (rows(), "holds no credit: trl-credit explain"),
        (rows(credit=[0.5, 1.0], tokens=None, token_ids=[3, 4]), "lacks the texts of its tokens: give --tokenizer"),
        (rows(credit=[0.5]), "mine.jsonl:1: credit has 1 entries, tokens has 2 entries"),
        (rows(credit=["a", "b"]), "credit must hold finite numbers, got 'a' at 0"),
        (rows(turn_ids=[0, -2]), "turn_ids must hold numbers of turns, -1 outside of them, got -2 at 1"),
        (rows(ref_logprobs=[-0.1, 0.5]), "ref_logprobs must hold log-probabilities, finite and at most 0, got 0.5"),
        (rows(entropy=[0.1, None], loss_mask=[0, 1]), "entropy may be null only where loss_mask is 0"),
        ([*rows(credit=[0.5, 1.0]), {"header": {}}], "mine.jsonl:3 has no 'prompt'"),
        (rows(prompt_token_ids=["a"]), "prompt_token_ids must be a list of token ids"),
        ([], "mine.jsonl holds no response"),
    ):
        code, _, error = command_said("view", written(tmp_path / "mine.jsonl", content))
        assert code == 2 and message in error, (message, error)


def test_rows_with_a_header_and_groups(tmp_path):
    facts = {"step": 7, "algorithm": "mine", "model": "m", "temperature": 0.6, "note": "Of my trainer."}
    content = rows(advantages=[0.5, None], entropy=[0.1, None], loss_mask=[1, 0], turn_ids=[0, -1])
    content = [row | {"group": name} for row in content for name in ("a", 2, None)]
    shard = read_file(written(tmp_path / "mine.jsonl", [{"header": facts}, *content]))
    assert [(response["group"], response["index"]) for response in shard.responses] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip
    note = "Credit is the advantage of each token: the file holds no credit. Of my trainer."
    assert shard.header == facts | {"run": "mine.jsonl", "note": note}


@pytest.mark.parametrize("header", [3, {"step": -1}, {"step": True}, {"temperature": "x"}, {"note": 1}, {"clip": [1]}])
def test_a_header_that_cannot_be_shown(tmp_path, header):
    with pytest.raises(ValueError, match=r"mine.jsonl:1: header can hold a step ≥ 0, .* got "):
        read_file(written(tmp_path / "mine.jsonl", [{"header": header}, *rows()]))
