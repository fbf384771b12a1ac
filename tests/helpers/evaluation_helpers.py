"""Evaluations of the embedded model that take a moment, and folders of samples made by hand."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from trl_credit.demo import demo_model_path
from trl_credit.lab.evaluation import evaluate
from trl_credit.lab.evaluation.sample_store import SampleFile


SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "evaluate.py"
SMALL = {"samples": 4, "metrics": ["pass@1", "pass@2", "maj@4", "avg@4"]}


def run(folder, models=("demo",), sets=("demo",), **options):
    options = {"protocols": ["demo"], "max_problems": 24, "changes": SMALL, "progress": False, **options}
    return evaluate(list(models), None if sets is None else list(sets), output_dir=folder, **options)


def sample_file(folder) -> Path:
    (path,) = Path(folder).glob("samples/*/*.jsonl")
    return path


def save_noisy_model(folder, noise: float) -> PreTrainedModel:
    """Saves the embedded model with Gaussian noise on its weights, in units of their standard deviation."""
    model = AutoModelForCausalLM.from_pretrained(demo_model_path())
    torch.manual_seed(0)
    for p in model.parameters():
        p.data += noise * p.data.std() * torch.randn_like(p) if p.numel() > 1 else 0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo_model_path()).save_pretrained(folder)
    return model


def stored(folder, model, verdicts, *, ids=None, set_name="demo", label="demo", **changes) -> Path:
    """Writes an evaluation folder. `verdicts`: whether each sample of each problem is right."""
    header = {"version": 1, "model": model, "revision": None, "weights": None, "prompt_style": "boxed"}
    header |= {"set": set_name, "protocol": label, "reward": "accuracy", "metrics": ["pass@1"], "max_context": None}
    header |= {"problems": len(verdicts), "samples": len(verdicts[0]), "max_new_tokens": 24}
    header |= {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **changes}
    ids = ids or [f"p{i}" for i in range(len(verdicts))]
    lines = []
    for problem, row in zip(ids, verdicts, strict=True):
        samples = [{"text": "x", "answer": "2" if c else "3", "correct": c} for c in row]
        samples = [{**sample, "length": 1, "truncated": False} for sample in samples]
        line = {"id": problem, "prompt": f"digest {problem}", "reference": {"answer": "2"}, "samples": samples}
        lines.append(line)
    SampleFile(Path(folder) / "samples" / model / f"{set_name}-{label}.jsonl", header, lines).write()
    return Path(folder)
