"""FIPO (arXiv 2603.19835): advantages weighed by how probable the policy has made the rest of the response.

GRPO gives every token the same advantage, whatever the policy has since learned about the rest of the response. FIPO
multiplies a token's advantage by a factor between 1 and 1.2, computed from how the log-probability of the rest of the
response has changed. From the second update of a batch on, tokens whose continuation has become more probable count up
to 1.2 times as much.

Use it when: responses are long, with many updates per batch; not measured here
Costs: one more forward pass per batch, for π_old; it samples once for 8 updates
"""

from dataclasses import dataclass, replace

from ..config.algorithm import settings_from
from ..config.credit_config import LOW_HIGH, CreditConfig
from ..config.knobs import COUNT, POSITIVE, Values, anything_but, knob, when
from ..config.rules import PER_TOKEN, TOKEN_MEANS, WEIGHTED_RULE, Rule
from ..credit.future_kl import few_dual_clipped, future_kl_weight
from ..credit.tokens import Credit, Tokens, wide
from ..loss.assignment import assign_credit
from .dapo import DAPOConfig
from .preset import PAPERS, Preset


RANGE = Values("two positive numbers, the smaller first", lambda x: LOW_HIGH.holds(x) and x[0] > 0.0)


@dataclass
class FIPO:
    """FIPO: A·f, where f reads the drift of the policy on the rest of the response."""

    future_half_life: float = knob(32.0, POSITIVE)
    future_clip: list[float] = knob([1.0, 1.2], RANGE)
    future_ratio_max: float | None = knob(10.0, POSITIVE)
    future_safety_ratio: float = knob(10.0, POSITIVE)
    future_drop_clipped: int | None = knob(None, COUNT, acts=when(delta=anything_but(None)))

    needs_drift = True
    by_row = True

    def credit(self, config: CreditConfig, tokens: Tokens) -> Credit:
        plain = assign_credit(config, tokens)
        advantage_t = wide(plain.advantage)
        drift = {"old_logp_t": tokens.old_logp_t, "advantage_t": advantage_t, "mask_t": tokens.policy_mask_t}
        factor_t = future_kl_weight(
            tokens.logp_t,
            half_life=self.future_half_life,
            clip_range=tuple(self.future_clip),
            ratio_max=self.future_ratio_max,
            safety_ratio=self.future_safety_ratio,
            **drift,
        )
        kept_t = None
        if self.future_drop_clipped is not None:
            kept_t = few_dual_clipped(tokens.logp_t, ratio_max=config.delta, limit=self.future_drop_clipped, **drift)
        return replace(plain, advantage=advantage_t * factor_t, mask=kept_t)


CREDIT = f"{__name__}.FIPO"


@settings_from(FIPO)
@dataclass
class FIPOConfig(DAPOConfig):
    r"""
    Configuration of [`FIPOTrainer`]: [`DAPOConfig`] with the published setting.

    The setting is that of the 32B model (App. B, Table 2). f is 1 in the first update of a batch. The paper trains on
    512 prompts in mini-batches of 64: if neither `steps_per_generation` nor `generation_batch_size` nor
    `num_iterations` is set, `steps_per_generation` becomes 8 times `gradient_accumulation_steps`. With
    `behavior_logps="sampler"` f also reads the noise of the engine. The script for 32B also has `groups="refill"` and
    the reward `soft_overlong`, see [`DAPOConfig`].

    Parameters:
        credit (`str`, *optional*, defaults to `"trl_credit.presets.fipo.FIPO"`): this algorithm.
        delta (`float`, *optional*, defaults to `10.0`): largest ratio that counts where A < 0 (dual clip).
        mask_truncated_completions (`bool`, *optional*, defaults to `False`): truncated responses stay in the loss.
        future_half_life (`float`, *optional*, defaults to `32.0`):
            Tokens after which the drift of a later token counts half.
        future_clip (`list[float]`, *optional*, defaults to `[1.0, 1.2]`):
            The smallest and largest f. `[0.8, 1.2]` also weakens credit.
        future_ratio_max (`float`, *optional*, defaults to `10.0`):
            The drift of a token with a larger ratio does not count, for any A as in the released code (Eq. 5: where
            A < 0). `None` counts all.
        future_safety_ratio (`float`, *optional*, defaults to `10.0`):
            Where A < 0 and the ratio is larger, f is at most 1. The paper has 10 for 32B and 3 for 7B (Tables 2 and 3),
            and the released loss 4.
        future_drop_clipped (`int`, *optional*):
            A response with this many tokens at the bound of `delta` leaves the policy term of an update, but not the
            divisor (ours). The released code has 2, and takes it out of both. `None`, as in the paper, drops none.
    """

    RULES = (
        Rule({}, when(credit=CREDIT), "FIPO is this object, whose method yours may call"),
        Rule({}, when(loss_type=TOKEN_MEANS), "f multiplies the advantage in PPO's minimum"),
        Rule({}, when(importance=PER_TOKEN), "it would average over the response or a turn what f makes differ"),
        WEIGHTED_RULE,
        Rule({}, when(rollouts=anything_but("tree")), "f reads the rest of a response, which a row of a tree may lack"),
    )
    updates_per_batch = 8

    credit: str | None = CREDIT
    delta: float | None = 10.0
    mask_truncated_completions: bool = False


PRESET = Preset(
    name="FIPO",
    paper=PAPERS["2603.19835"],
    summary="advantages weighed by the policy's drift on the rest of the response",
    formula="W = ℓ − ℓ°, A = group advantage · sg clip(exp Σ_{k≥t} γ^{k−t} (ℓ_k − ℓ°_k)), M = all tokens",
    config=FIPOConfig,
)
