"""Makes tests/data/verifiers/*.jsonl with the package verifiers itself. Its results were made with verifiers 0.4.0:

    python -m venv venv && venv/bin/pip install verifiers==0.4.0
    cd tests/helpers && HOME=/tmp ../../venv/bin/python make_verifiers_rollouts.py

A harness gives tasks of the embedded model to a server on loopback, which answers with fixed texts, token ids and
log-probabilities. `trained.jsonl` is what the client for training saves, annotated as prime-rl does it, and
`evaluated.jsonl` what the client for evaluation saves, which has no token ids.
"""

import asyncio
import json
import os
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import verifiers.v1 as vf
from verifiers.v1.utils.trace_store import TRACES_FILE, write_episode


ROOT = Path(__file__).resolve().parents[2]
MODEL = "demo"
VOCABULARY = json.loads((ROOT / "trl_credit/demo/model/tokenizer.json").read_text())["model"]["vocab"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
# the answers to a prompt, in turn
ANSWERS = {
    "3+2-1:": ["3+2=5;5-1=4", "3+2=6;6-1=5", "3+2=5;5-1=4", "3+2=5;5-1=3"],
    "1+1:": ["1+1=2", "1+1=3"],
    "7-2:": ["7-2=5", "7-2=4", "7-2=4"],
}


class Answers(BaseHTTPRequestHandler):
    """`/inference/v1/generate` of vLLM and `/v1/chat/completions`."""

    protocol_version = "HTTP/1.1"
    given: dict[str, int] = {}

    def do_GET(self):
        self._send({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 512}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "token_ids" in request:
            texts = {i: text for text, i in VOCABULARY.items()}
            prompt = "".join(texts[i] for i in request["token_ids"])
        else:
            prompt = request["messages"][-1]["content"]
        prompt = prompt.rpartition("<eos>")[2]
        turn = self.given[prompt] = self.given.get(prompt, -1) + 1
        text = ANSWERS[prompt][turn % len(ANSWERS[prompt])]
        if "token_ids" in request:
            ids = [*(VOCABULARY[c] for c in text), VOCABULARY["<eos>"]]
            # a digit after "=" is a decision
            content = [
                {"token": f"token_id:{i}", "logprob": -0.6931 if k and text[k - 1] == "=" else -0.01}
                for k, i in enumerate(ids)
            ]
            choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": {"content": content}}
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(text), "total_tokens": len(prompt + text)}
        self._send(
            {"id": "0", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice], "usage": usage}
        )

    def _send(self, answer: dict):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object):
        pass


class StepsData(vf.TaskData):
    answer: str
    then: list[list[str]] = []
    """Further conversations that go on after the first answer: what the user says in each."""


class StepsTask(vf.Task[StepsData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.endswith(f"={self.data.answer}"))

    @vf.reward(weight=0.1)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 8)


class StepsHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ) -> vf.ProgramResult:
        async with httpx.AsyncClient(base_url=endpoint, headers={"Authorization": f"Bearer {secret}"}) as client:

            async def answered(messages: list[dict]) -> list[dict]:
                response = await client.post("/chat/completions", json={"model": ctx.model, "messages": messages})
                return [*messages, response.raise_for_status().json()["choices"][0]["message"]]

            first = await answered([{"role": "user", "content": data.prompt}])
            for said in data.then:
                messages = first
                for text in said:
                    messages = await answered([*messages, {"role": "user", "content": text}])
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["StepsHarness"]


def annotate(episodes: list[vf.Episode]) -> None:
    """What a trainer adds, as prime-rl does: reward minus the group's mean, and streams of loss weights."""
    mean = sum(episode.traces[0].reward for episode in episodes) / len(episodes)
    for number, episode in enumerate(episodes):
        trace = episode.traces[0]
        for place, node in enumerate(trace.nodes):
            if node.sampled:
                node.advantages = [trace.reward - mean] * len(node.logprobs)
                node.trainer_logprobs = [x - 0.002 for x in node.logprobs]
                node.entropies = [0.69 if x < -0.5 else 0.03 for x in node.logprobs]
                if number == 1:
                    node.loss_weights = {"rl": [0.5 * x for x in node.mask]}
            elif place > 0:  # what the user said to an answer
                node.loss_weights = {"ce": [0.1] * len(node.token_ids)}


async def rollouts(client: vf.ClientConfig, folder: Path) -> Path:
    config = vf.AgentConfig(
        model=MODEL,
        client=client,
        harness=vf.HarnessConfig(id="make_verifiers_rollouts"),
        runtime=vf.SubprocessConfig(),
        sampling=vf.SamplingConfig(temperature=1.0),
    )
    tasks = [
        (StepsData(idx=0, prompt="3+2-1:", answer="4"), 4),
        (StepsData(idx=1, prompt="1+1:", answer="5", then=[["7-2:"]]), 2),
        (StepsData(idx=2, prompt="1+1:", answer="5", then=[["7-2:"], ["3+2-1:", "7-2:"]]), 1),
    ]
    Answers.given.clear()
    for data, count in tasks if client.type == "train" else tasks[:1]:
        episodes = []
        for _ in range(count):
            async with vf.make_agent(config) as agent:
                trace = await agent.run(StepsTask(data))
            episodes.append(vf.Episode(env=vf.EnvInfo(id="steps"), task=trace.task, traces=[trace], ok=trace.ok))
        if client.type == "train":
            annotate(episodes)
        for episode in episodes:
            write_episode(folder, episode)
    return folder / TRACES_FILE


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # records hold the tokenizer's name as it was given
        shutil.copytree(ROOT / "trl_credit/demo/model", MODEL, ignore=shutil.ignore_patterns("model*"))
        settings = Path(MODEL, "tokenizer_config.json")
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
        for name, client in {
            "trained": vf.TrainClientConfig(base_url=url, renderer_model_name=MODEL),
            "evaluated": vf.EvalClientConfig(base_url=url),
        }.items():
            Path(name).mkdir()
            made = asyncio.run(rollouts(client, Path(name)))
            shutil.copy(made, ROOT / f"tests/data/verifiers/{name}.jsonl")


if __name__ == "__main__":
    main()
