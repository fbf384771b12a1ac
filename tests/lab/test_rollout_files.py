"""Rollouts of others: JSONL rows, and what verifiers 0.4.0 saved, which examples/verifiers_rollouts converts."""

import json
from pathlib import Path

import pytest
from scripts import load_script

from trl_credit.demo import demo_model_path
from trl_credit.lab.rollout_files import read_file
from trl_credit.lab.viewer.runs import read_run
from trl_credit.observe.schema import Shard


script = load_script("examples/verifiers_rollouts/verifiers_rollouts.py")
TRAINED = Path(__file__).parents[1] / "data" / "verifiers" / "trained.jsonl"


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

    def write(change=lambda episode: None, name: str = "traces.jsonl") -> Path:
        episodes = [json.loads(line) for line in TRAINED.read_text().splitlines()]
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


def set_node(**values):
    return lambda episode: nodes_of(episode)[-1].update(values)


DAMAGED = [
    (set_node(advantages=[0.5]), "advantages"),
    (set_node(parent=5), "node 1: parent"),
    (lambda episode: episode.update(traces=[3]), "traces"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_a_damaged_file_is_refused_with_its_line(changed, change, message):
    path = changed(change)
    with pytest.raises(ValueError, match=message) as error:
        script.read_verifiers(path)
    assert str(error.value).startswith(f"{path}:1") and "\n" not in str(error.value)


def test_files_of_the_wrong_kind(changed, command_said, capsys, tmp_path):
    path, rows = changed(), tmp_path / "rollouts.jsonl"
    code, _, error = command_said("view", path)
    assert code == 2 and f"{path}:1 is not" in error and "trl-credit example verifiers_rollouts" in error
    none_left = changed(lambda episode: episode["traces"][0].update(ok=False), name="failed.jsonl")
    for words in ((none_left, rows), (tmp_path / "missing.jsonl", rows), (path, path)):
        with pytest.raises(SystemExit) as stopped:
            script.main([*map(str, words)])
        assert stopped.value.code == 2 and not rows.exists()


def test_rollouts_of_verifiers_on_the_page_and_explained(changed, command_said, tmp_path):
    path = converted(changed(lambda e: nodes_of(e)[0]["message"].update(content="</script><b>\x1b[31m\ud83d")))
    code, _, error = command_said("view", path)
    assert code == 2 and "lacks the texts of its tokens: give --tokenizer 'demo'" in error
    code, out, _ = command_said("view", path, "--tokenizer", demo_model_path())
    assert code == 0 and "Credit is the saved advantage times the loss weight" in out
    page = (tmp_path / "rollouts.html").read_text()
    assert "</script><b>" not in page and "Credit is the saved advantage" in page
    shard = read_run(path, tokenizer=demo_model_path())[0][0]
    assert "".join(shard.responses[0]["tokens"]) == "3+2=5;5-1=4<eos>"
    code, _, error = command_said("view", path, "--tokenizer", tmp_path)
    assert code == 2 and "--tokenizer" in error
    code, _, error = command_said("explain", path)
    assert code == 2 and "give --model, or --tokenizer" in error
    words = ["--tokenizer", demo_model_path(), "--algo", "grpo", "s_trace"]
    code, out, _ = command_said("explain", path, *words)
    rows = {line.split(" | ")[0].strip("| ") for line in out.splitlines() if line.startswith("|")}
    assert code == 0 and {"GRPO", "S-trace", "verifiers: A × loss weight, as trained"} <= rows


# --- JSONL rows ---


def rows(**more) -> list[dict]:
    row = {"prompt": "1+1=", "tokens": ["2", "!"], "completion": "2!"}
    return [row | {"reward": float(i), **more} for i in range(2)]


def written(path: Path, content: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def test_rows_with_credit_on_the_page(tmp_path, command_said):
    prompt = [{"role": "system", "content": "Be short."}]
    path = written(tmp_path / "mine.jsonl", rows(credit=[0.5, None], prompt=prompt))
    code, out, _ = command_said("view", path)
    assert code == 0 and "mine.html" in out
    assert "system: Be short." in (tmp_path / "mine.html").read_text()
    code, out, _ = command_said("view", path, "--terminal")
    assert code == 0 and "+0.5  2\n" in out and "–  !\n" in out and "None" not in out


def test_advantages_are_shown_where_there_is_no_credit(tmp_path):
    path = written(tmp_path / "mine.jsonl", rows(advantages=[0.5, None]))
    shard = read_file(path)
    assert all(response["credit"] == [0.5, 0.0] for response in shard.responses)
    assert shard.header["note"].startswith("Credit is the advantage of each token")
    both = read_file(written(path, rows(advantages=[0.5, None], credit=[0.1, 0.2])))
    assert all(response["credit"] == [0.1, 0.2] for response in both.responses) and both.header["note"] == ""


NOT_SHOWN = [
    (rows(), "trl-credit explain"),
    (rows(credit=[0.5, 1.0], tokens=None, token_ids=[3, 4]), "--tokenizer"),
    (rows(credit=[0.5]), "credit has 1 entries"),
    (rows(credit=["a", "b"]), "mine.jsonl:1: credit"),
    ([*rows(credit=[0.5, 1.0]), {"header": {}}], "mine.jsonl:3"),
    ([{"header": {"step": True}}, *rows(credit=[0.5, 1.0])], "mine.jsonl:1: header"),
    ([], "holds no response"),
]


@pytest.mark.parametrize(("content", "message"), NOT_SHOWN)
def test_rows_that_cannot_be_shown(tmp_path, command_said, content, message):
    code, _, error = command_said("view", written(tmp_path / "mine.jsonl", content))
    assert code == 2 and message in error and error.count("\n") == 1


def test_rows_with_a_header_and_groups(tmp_path):
    facts = {"step": 7, "algorithm": "mine", "model": "m", "temperature": 0.6, "note": "Of my trainer."}
    content = rows(advantages=[0.5, None], entropy=[0.1, None], loss_mask=[1, 0], turn_ids=[0, -1])
    content = [row | {"group": name} for row in content for name in ("a", 2, None)]
    shard = read_file(written(tmp_path / "mine.jsonl", [{"header": facts}, *content]))
    places = [(response["group"], response["index"]) for response in shard.responses]
    assert places == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    note = "Credit is the advantage of each token: the file holds no credit. Of my trainer."
    assert shard.header == facts | {"run": "mine.jsonl", "note": note}
