"""The golden weights of the specification: cases, and the knobs of each."""

import json

import torch
from conftest import EXTRACTS


CASES = json.loads((EXTRACTS / "golden_weights.json").read_text())["cases"]

KNOBS = {
    "token": {"importance": "token"},
    "sequence": {"importance": "sequence"},
    "sequence_token": {"importance": "sequence_token"},
    "p_trace": {"importance": "eligible"},
    "s_trace": {"importance": "eligible", "selector": "entropy"},
    "s_trace_no_lowo": {"importance": "eligible", "selector": "entropy", "leave_own_out": False},
    "grpo_lambda_recent": {"importance": "lambda_trace"},
    "grpo_lambda_both": {"importance": "lambda_trace", "trace_style": "both"},
}


def tensors(case, dtype):
    names = ("logps", "old_logps", "ref_logps", "entropies", "advantages", "mask", "keep")
    return {name: torch.tensor(case[name], dtype=dtype) for name in names}


def differs_inside_a_row(values):
    rows = zip(values["advantages"], values["mask"].bool(), strict=True)
    return any(len(row[kept].unique()) > 1 for row, kept in rows)
