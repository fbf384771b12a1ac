"""Slow references for weights and means per turn, and conversations of several turns."""

import torch


P_TRACE = {"importance": "eligible", "trace_unit": "turn"}
S_TRACE = {**P_TRACE, "selector": "entropy", "selective_rate": 0.5}
TURN_FORMS = {
    "turn": {"importance": "turn"},
    "turn_token": {"importance": "turn_token"},
    "p_trace": P_TRACE,
    "s_trace": S_TRACE,
    "own left in": {**S_TRACE, "leave_own_out": False},
    "lambda": {"importance": "lambda_trace", "trace_unit": "turn"},
    "lambda both": {"importance": "lambda_trace", "trace_unit": "turn", "trace_style": "both"},
}


def turn_jacobian(config, turns, mask, selected=None):
    """∂W_t/∂ℓ_k of one row, shape (T, T), token by token. `turns`, `mask` and `selected` are lists."""
    length, g = len(turns), config.trace_decay
    jacobian = torch.zeros(length, length, dtype=torch.float64)
    counts = {turn: sum(m for m, other in zip(mask, turns, strict=True) if other == turn) for turn in turns}
    z = [1.0] * length if selected is None or config.selector == "none" else selected
    for t in range(length):
        for k in range(length):
            if not mask[t] or not mask[k]:
                continue
            share = 1 / counts[turns[k]]
            if config.importance == "turn":
                jacobian[t, k] = share * (turns[t] == turns[k])
            elif t == k:
                is_selected = config.importance == "eligible" and not config.leave_own_out
                jacobian[t, k] = z[k] if is_selected else 1.0
            elif config.importance in ("eligible", "lambda_trace") and turns[k] < turns[t]:
                reach = g ** (turns[t] - turns[k])
                if config.importance == "eligible":
                    reach *= z[k]
                elif config.trace_style == "both":
                    reach = max(reach, g ** turns[k])
                jacobian[t, k] = share * reach
    return jacobian


def mean_of_turns(x_t, turns_t, *, kept_t, counted_t=None):
    """The sum of `x_t` over the tokens of `counted_t` in each turn, divided by its tokens of `kept_t`, then the mean
    over the turns that have one, then over rows: a scalar."""
    counted_t = kept_t if counted_t is None else counted_t
    rows = []
    for x, turns, kept, counted in zip(x_t, turns_t.tolist(), kept_t.tolist(), counted_t.tolist(), strict=True):
        means = []
        for turn in sorted({turn for turn, m in zip(turns, kept, strict=True) if m}):
            places = [t for t, other in enumerate(turns) if other == turn]
            n = sum(kept[t] for t in places)
            means.append(sum(x[t] for t in places if counted[t]) / n)
        rows.append(sum(means) / len(means) if means else torch.zeros((), dtype=x_t.dtype))
    return sum(rows) / len(rows)


# 1: written by the policy; three turns, one turn, two turns with a longer second one
CONVERSATIONS = [[1, 1, 0, 1, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1]]


def conversations(prompts, trainer):
    """A `rollout_func` whose responses have one to three turns."""
    masks = [CONVERSATIONS[i % 4] for i in range(len(prompts))]
    return {
        "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [[5 + (3 * i + 2 * k) % 11 for k in range(len(m) - 1)] + [1] for i, m in enumerate(masks)],
        "logprobs": None,
        "env_mask": masks,
    }
