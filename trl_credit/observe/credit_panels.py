"""The panels of the plot of credit: their metrics, and what they show."""

from typing import NamedTuple


_RANKS = ("1st", "2nd", "3rd", *(f"{n}th" for n in range(4, 10)))
_ENTROPY = {
    f"coefficient/entropy_decile_{d}": f"{rank} tenth" for d, rank in enumerate(("lowest", *_RANKS[1:], "highest"))
}
_DIFFICULTY = {
    f"difficulty_weight/{prompts}_{name}": f"{prompts}, A {sign} 0"
    for prompts in ("harder", "easier")
    for name, sign in (("positive", ">"), ("negative", "<"))
}


def _quarters(name: str) -> dict[str, str]:
    return {f"{name}/quarter_{q}": f"{rank} quarter" for q, rank in enumerate(_RANKS[:4], start=1)}


class Panel(NamedTuple):
    """A panel of the figure.

    Attributes:
        title, unit: Above it, and at its vertical axis. With "%", the logged values are shares.
        labels: The metrics of `credit/` with their names in the legend; one that ends in "/" stands for all metrics
            that begin with it.
        sentence: What it shows.
    """

    title: str
    unit: str
    labels: dict[str, str]
    sentence: str = ""


# the first have the most to say
PANELS = (
    Panel(
        "skipped updates",
        "%",
        {"skipped_updates": ""},
        "Updates that were left out because their loss or gradient was not finite.",
    ),
    Panel(
        "updates with a gradient of 0",
        "%",
        {"zero_gradients": ""},
        "Updates that changed no weight, although tokens had advantages.",
    ),
    Panel(
        "gradient of a token, by its entropy",
        "in units of its advantage",
        _ENTROPY,
        "1 is a token's own advantage, and what is above came back through the traces of later tokens; the entropy is "
        "ranked within a response.",
    ),
    Panel(
        "gradient of a token, by its place",
        "in units of its advantage",
        _quarters("coefficient"),
        "The same by quarter of the response: a token that many others follow receives more.",
    ),
    Panel(
        "weight by difficulty",
        "factor on A",
        _DIFFICULTY,
        "What HA-DW multiplies advantages by, for prompts harder and easier than its belief.",
    ),
    Panel(
        "belief in the model's accuracy",
        "share correct",
        {"difficulty_belief": ""},
        "Prompts with fewer right responses count as harder, those with more as easier.",
    ),
    Panel(
        "value of segments",
        "reward",
        {"segment_value/": ""},
        "Mean reward of what was sampled from a segment on: how promising a response is at that point.",
    ),
    Panel(
        "size of the advantage of nodes",
        "mean |A|",
        {"segment_abs_advantage/": ""},
        "How much the value of a node differs from that of its siblings: where responses are decided.",
    ),
    Panel(
        "advantage of segments",
        "mean A",
        {"segment_advantage/": ""},
        "Mean change of the value from the beginning of a segment to its end.",
    ),
    Panel(
        "nodes without advantage",
        "%",
        {"nodes_zero_advantage": ""},
        "Nodes whose value equals that of their siblings, so that nothing can be learned from them.",
    ),
    Panel(
        "clipped tokens",
        "%",
        {"clip_fraction": "of all tokens", "clip_fraction/response_mean": "mean over responses"},
        "Tokens that lose their gradient because their probability has moved out of the clip range.",
    ),
    Panel(
        "groups without signal",
        "%",
        {"groups_without_signal": ""},
        "Prompts whose responses all earn the same, or whose segments have no advantage: they teach nothing.",
    ),
    Panel(
        "prompts of a batch",
        "number",
        {"groups/sampled": "sampled", "groups/copies": "copies", "groups/waiting": "waiting for the next batch"},
        "Prompts sampled until the batch was full, groups that are copies, and groups with signal beyond a full batch.",
    ),
    Panel(
        "different responses",
        "per group",
        {"unique_responses": ""},
        "Different texts among the responses to a prompt: exploration that is left.",
    ),
    Panel(
        "size of the advantage, by place",
        "mean |A|",
        _quarters("abs_advantage"),
        "How far rewards differ from the baseline, by quarter of the response; 0 teaches nothing.",
    ),
    Panel(
        "tokens in the policy term",
        "%",
        {"kept_fraction": ""},
        "Tokens that the mask keeps.",
    ),
    Panel(
        "tokens of rollouts",
        "% of sampled tokens",
        {"rollout_token_share": ""},
        "Tokens that were sampled only to value segments.",
    ),
    Panel(
        "experts that changed",
        "%",
        {"expert_drift": ""},
        "Experts of a token in the sampling policy that the current policy does not use.",
    ),
)
