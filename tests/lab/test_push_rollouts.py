"""`push --with_rollouts`: a data set of the rollout log and a Space of its page beside the model."""

import shlex
from pathlib import Path

import datasets
import pytest
import yaml
from hub_helpers import run_folder
from hub_server import HubServer
from viewer_helpers import s_trace, spo_tree

from trl_credit.hub import Repository, publishable
from trl_credit.lab.viewer.on_hub import push_with_rollouts
from trl_credit.observe.schema import read_shard, shard_path, write_shard


REPOS = ("me/x", "datasets/me/x-rollouts", "spaces/me/x-credit")


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    folder = run_folder(tmp_path / "run", tiny_model)
    for step in (10, 20):
        write_shard(shard_path(folder, step), s_trace(step))
    return folder


def push_to(hub: HubServer, folder: Path, repo_id: str = "x", **options) -> list[str]:
    repo = Repository(repo_id, token=hub.token, endpoint=hub.url, **options)
    return push_with_rollouts(folder, repo, page="<p>page</p>")


def sent(hub: HubServer, repo: str, folder: Path) -> Path:
    for name, content in hub.repos[repo].branches["main"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def loaded(folder: Path, cache: Path, *config: str) -> list[dict]:
    return datasets.load_dataset(str(folder), *config, split="train", cache_dir=str(cache)).to_list()


def test_the_data_set_is_the_log(hub, folder, tmp_path):
    logged = s_trace(10)
    logged.responses[0]["answer"] = "42"
    write_shard(shard_path(folder, 10), logged)
    urls = push_to(hub, folder, private=True)
    assert [url.partition("/commit/")[0] for url in urls] == [f"{hub.url}/{repo}" for repo in REPOS]
    assert all(hub.repos[repo].private and len(hub.repos[repo].commits) == 1 for repo in REPOS)
    assert set(hub.repos["me/x"].branches["main"]) == set(publishable(folder))
    data = sent(hub, REPOS[1], tmp_path / "data")
    rows = loaded(data, tmp_path / "cache")
    logged = read_shard(shard_path(folder, 10))  # its numbers are rounded
    count = len(logged.responses)
    assert len(rows) == 2 * count and [row["step"] for row in rows] == [10] * count + [20] * count
    assert rows[0]["answer"] == "42" and rows[1]["answer"] is None
    for row, response in zip(rows, logged.responses, strict=False):
        for name in ("group", "index", "prompt", "completion", "reward", "tokens", "policy_mask", "segment_ids"):
            assert row[name] == response.get(name)
        for name in ("credit", "advantages", "entropy", "trainer_logprobs"):
            assert row[name] == pytest.approx(response[name], rel=1e-6)
        assert {one["name"]: one["value"] for one in row["rewards"]} == pytest.approx(response.get("rewards") or {})
    first, last = loaded(data, tmp_path / "cache", "steps")
    assert first["algorithm"] == "S-trace" and last["step"] == 20 and first["clip"] == logged.header["clip"]
    card = (data / "README.md").read_text()
    described = " ".join(line.split("|")[1] for line in card.splitlines() if line.startswith("| `"))
    assert set(rows[0]) - set(described.split("`")) == {"algorithm"}
    assert 'load_dataset("me/x-rollouts"' in card and "trees" not in card.partition("| field of")[0]
    assert push_to(hub, folder, private=True) == urls  # nothing is new


def test_trees_are_a_configuration_of_their_own(hub, folder, tmp_path):
    tree = spo_tree(20)
    write_shard(shard_path(folder, 20), tree)
    push_to(hub, folder)
    rows = loaded(sent(hub, REPOS[1], tmp_path / "data"), tmp_path / "cache", "trees")
    tree = read_shard(shard_path(folder, 20))  # its numbers are rounded
    nodes = [(group, node) for group, nodes in tree.trees.items() for node in nodes]
    assert [(row["group"], row["text"], row["value"]) for row in rows] == [(g, n["text"], n["value"]) for g, n in nodes]
    write_shard(shard_path(folder, 20), s_trace(20))
    push_to(hub, folder)
    assert "trees.parquet" not in hub.repos[REPOS[1]].branches["main"]  # of the earlier push


def test_the_space_is_the_page(hub, folder):
    push_to(hub, folder, private=True)
    space = hub.repos[REPOS[2]]
    assert space.sdk == "static" and set(space.branches["main"]) == {"README.md", "index.html"}
    assert space.branches["main"]["index.html"] == b"<p>page</p>" == (folder / "credit_space/index.html").read_bytes()
    about = next(yaml.safe_load_all(space.branches["main"]["README.md"]))
    assert about["sdk"] == "static" and about["app_file"] == "index.html"
    assert about["models"] == ["me/x"] and about["datasets"] == ["me/x-rollouts"]


def test_what_is_refused_before_anything_is_sent(own_hub, folder, command_said):
    words = ["push", folder, "--repo_id", "me/x", "--with_rollouts"]
    logged = s_trace(10)
    for place in ("prompt", "completion"):
        response = logged.responses[-1] | {place: f"my key is {own_hub.token}"}
        write_shard(shard_path(folder, 10), type(logged)(logged.header, {}, [*logged.responses[:-1], response]))
        code, _, error = command_said(*words)
        assert code == 2 and "step-00000010.jsonl holds your access token" in error and own_hub.token not in error
    for path in (folder / "credit_log").iterdir():
        path.unlink()
    code, _, error = command_said(*words)
    assert code == 2 and "has no rollout log" in error
    assert own_hub.requests == [] and not (folder / "credit_space").exists()


def test_the_command(own_hub, folder, command_said):
    own_hub.break_at(20, 403)
    code, _, error = command_said("push", folder, "--repo_id", "me/x", "--with_rollouts")
    retry = error.splitlines()[-1].partition("trl-credit ")[2]
    assert code == 1 and retry.endswith("--with_rollouts")
    own_hub.mend()
    code, out, _ = command_said(*shlex.split(retry))
    pushed = [line.partition("/commit/")[0] for line in out.splitlines()]
    assert code == 0 and pushed == [f"pushed  {own_hub.url}/{repo}" for repo in REPOS]
    page = own_hub.repos[REPOS[2]].branches["main"]["index.html"].decode()
    assert "<title>run · credit per token</title>" in page and str(folder.parent) not in page
