"""Histories of runs made by hand."""

from pathlib import Path

from trl_credit.lab.comparison.histories import History, make_history


IDENTITY = {"algorithm": "GRPO", "seed": 0, "rollouts": "none", "batch_size": 8, "generation_batch_size": 8}
IDENTITY |= {"num_iterations": 1, "num_generations": 4}


def log_state(values, *, every=1, tokens=10.0, **more) -> dict:
    """A trainer's state that logged these rewards every `every` steps. A value `None` removes a field of the rows."""
    fields = {"step_time": 0.5, "completions/mean_length": tokens, "credit/trained_tokens_per_row": 7.0, **more}
    fields = {name: value for name, value in fields.items() if value is not None}
    rows = [{"step": every * i, "reward": float(value), **fields} for i, value in enumerate(values, start=1)]
    return {"log_history": rows, "max_steps": every * len(values), "global_step": every * len(values)}


def history(values, *, log=None, record=None, **identity) -> History:
    """The history of a run with these rewards; `log` are arguments of `log_state`, `identity` fields that differ."""
    return make_history(log_state(values, **(log or {})), IDENTITY | identity, folder=Path("run"), record=record)
