"""Folders of samples as an evaluation leaves them, by the verdicts alone."""

from pathlib import Path

from trl_credit.evaluation.store import write_samples


def stored(folder, model, verdicts, *, ids=None, set_name="demo", label="demo", prompts=True, **changes) -> Path:
    """`verdicts`: for each problem whether each sample is right. The folder, for a command line."""
    header = {
        "version": 1,
        "model": model,
        "revision": None,
        "weights": None,
        "prompt_style": "boxed",
        "set": set_name,
        "problems": len(verdicts),
        "reward": "accuracy",
        "protocol": label,
        "samples": len(verdicts[0]),
        "temperature": 1.0,
        "max_new_tokens": 24,
        "metrics": ["pass@1"],
        "top_p": 1.0,
        "top_k": 0,
        "max_context": None,
    } | changes
    lines = [
        {
            "id": f"p{i}" if ids is None else ids[i],
            **({"prompt": f"digest {i if ids is None else ids[i]}"} if prompts else {}),
            "reference": {"answer": "2"},
            "samples": [
                {"text": "x", "answer": "2" if c else "3", "correct": c, "length": 1, "truncated": False} for c in row
            ],
        }
        for i, row in enumerate(verdicts)
    ]
    write_samples(Path(folder) / "samples" / model / f"{set_name}-{label}.jsonl", header, lines)
    return Path(folder)
