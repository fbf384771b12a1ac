"""Segment credit with a real vLLM server on this machine. See `test_vllm.py`.

TRL sends weights to a server over NCCL, which needs GPUs. So no weights are sent here, and the server's stay the same.
"""

from trl.generation.vllm_client import VLLMClient
from worker import logged, print_result, run_main, trainer_of

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_reward, demo_settings


def main(folder: str, port: str) -> None:
    sent, calls = [], []
    generate = VLLMClient.generate
    VLLMClient.init_communicator = lambda self, device=0: None
    VLLMClient.close_communicator = lambda self: None
    VLLMClient.update_named_params = lambda self, metadata, parameters: sent.append(len(list(parameters)))

    def counted(self, prompts, *args, **kwargs):
        calls.append([len(prompts), kwargs["n"], kwargs["max_tokens"]])
        return generate(self, prompts, *args, **kwargs)

    VLLMClient.generate = counted
    result = {}
    for algo in ("spo_chain", "spo_tree"):
        sent.clear()
        calls.clear()
        config_class, trainer_class = ALGORITHMS[algo]
        tree = {"tree_branching": [3, 2, 2]} if algo == "spo_tree" else {}
        sizes = {"per_device_train_batch_size": 16, "max_steps": 2, "num_iterations": 1, "logging_steps": 1}
        settings = demo_settings(config_class, **sizes, **tree)
        settings |= {"use_vllm": True, "vllm_mode": "server", "vllm_server_timeout": 20.0}
        settings |= {"vllm_server_base_url": f"http://127.0.0.1:{port}"}
        trainer = trainer_of(trainer_class, demo_reward, f"{folder}/{algo}", **settings)
        trainer.train()
        result[algo] = {"calls": list(calls), "syncs": len(sent), "log": logged(trainer)}
    print_result(**result)


if __name__ == "__main__":
    run_main(main)
