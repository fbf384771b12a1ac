"""The keys of TRL's dict of a batch, and our additional ones. No other module spells them."""

# TRL's
PROMPT_IDS = "prompt_ids"
PROMPT_MASK = "prompt_mask"
COMPLETION_IDS = "completion_ids"
COMPLETION_MASK = "completion_mask"
TOOL_MASK = "tool_mask"  # hides tokens only from the loss; the completion mask would change attention
ADVANTAGES = "advantages"
OLD_LOGPS = "old_per_token_logps"
REF_LOGPS = "ref_per_token_logps"
SAMPLING_LOGPS = "sampling_per_token_logps"
ENGINE_RATIO = "importance_sampling_ratio"
NUM_ITEMS = "num_items_in_batch"
NUM_IMAGES = "num_images"
TYPE_IDS = ("token_type_ids", "mm_token_type_ids")  # these span prompt and completion
# inputs of TRL's forward pass besides tokens, for models with images
FORWARD = (
    *("pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "image_position_ids", NUM_IMAGES),
    *("spatial_shapes", "num_tiles", *TYPE_IDS),
)
VISIBLE_UNTIL = TYPE_IDS[0]  # tells TRL's forward pass what the branches of a tree see

# ours, one entry per row
SEGMENT_IDS = "segment_ids"
QUARTERS = "response_quarters"
REF_ENTROPIES = "ref_entropies"  # entropy of the reference model, nats
POLICY_MASK = "policy_mask"
ROW_WEIGHT = "row_weight"
STATISTICS = "batch_statistics"  # of a credit function that declares them
TEACHER_LOGPS = "teacher_per_token_logps"  # NaN in rows without a context
TURN_IDS = "turn_ids"
RETURNS = "return_advantages"  # advantages from rewards along the response
STEP_REWARDS = "step_rewards"  # at the ends of steps; NaN elsewhere
LOG_ROW = "log_row"  # number of a row in its generation batch, for the rollout log
NO_UPDATE = "no_update"  # a list of `True` if no process has a row to learn from

ZERO_VARIANCE_ROW = "zero_variance_row"  # whether the KL term of a row is dropped

# what fills an entry (B, T) or (B, P) outside of a row; 0 for all others. "pad" stands for the padding token
FILL = {PROMPT_IDS: "pad", COMPLETION_IDS: "pad", TOOL_MASK: 1, ENGINE_RATIO: 1}
FILL |= dict.fromkeys((SEGMENT_IDS, QUARTERS, TURN_IDS), -1) | {STEP_REWARDS: float("nan")}
OF_PROMPT = (PROMPT_IDS, PROMPT_MASK)  # padded on the left

# ours, one for a whole micro-batch
ZERO_ADVANTAGE = "zero_advantage"  # whether no process has a token with an advantage in it
COLUMNS_CUT = "columns_cut"  # number of padding columns that were cut off in front
PACKED_LAYOUT = "packed_layout"  # how the rows are packed
