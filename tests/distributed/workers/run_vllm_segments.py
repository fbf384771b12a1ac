"""Two steps of segment credit, with a colocated vLLM on a CPU or without. See `test_vllm.py`."""

import vllm.model_executor.layers.linear as linear
import vllm.model_executor.layers.utils as utils
from run_vllm import keep_weights
from worker import kept, logged, print_result, run_main, trainer_of

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_reward, demo_settings


def main(algo: str, engine: str, folder: str) -> None:
    for module in (utils, linear):
        module.dispatch_cpu_unquantized_gemm = keep_weights
    config_class, trainer_class = ALGORITHMS[algo]
    # eight trees of 21 nodes for 32 rows: enough with an advantage are left to replay, whatever a machine samples
    tree = {"tree_branching": [3, 2, 2], "replay_iterations": 2, "num_generations": 4} if algo == "spo_tree" else {}
    sizes = {"per_device_train_batch_size": 32, "max_steps": 2, "num_iterations": 1, "logging_steps": 1}
    settings = demo_settings(config_class, **sizes, **tree)
    if engine == "vllm":
        settings |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.1,
            "vllm_max_model_length": 64,
        }
    trainer = trainer_of(trainer_class, demo_reward, folder, **settings)
    result, syncs = {"calls": [], "prefix_caching": None, "trees": []}, []
    if engine == "vllm":
        llm, backend = trainer.vllm_generation.llm, trainer.vllm_generation
        result["prefix_caching"] = llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
        generate, syncs = llm.generate, kept(backend, "sync_weights")

        def counted_generate(prompts, sampling_params=None, **kwargs):
            params = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
            result["calls"].append([[len(p["prompt_token_ids"]), s.n, s.max_tokens] for p, s in zip(prompts, params)])  # noqa: B905
            return generate(prompts, sampling_params=sampling_params, **kwargs)

        llm.generate = counted_generate
    if trainer.forest is not None:
        new_rows = trainer.forest._new_rows

        def keep_trees(trees):
            result["trees"] += [
                {
                    "answer": tree.example["answer"],
                    "nodes": [
                        {
                            "path": [n.segment.ids for n in node.path()],
                            "logps": node.segment.logps,
                            "value": node.value,
                            "advantage": node.advantage,
                            "children": len(node.children),
                            "text": trainer.engine.decode(node.written()),
                        }
                        for node in tree.root.walk()[1:]
                    ],
                }
                for tree in trees
            ]
            return new_rows(trees)

        trainer.forest._new_rows = keep_trees
    trainer.train()
    print_result(log=logged(trainer), syncs=len(syncs), **result)


if __name__ == "__main__":
    run_main(main)
