"""The sizes of the family's models and heads, and their training budgets."""

from dataclasses import dataclass, replace

from slipstream.drafters.training.features import low_middle_high
from slipstream.drafters.training.loop import Plan
from slipstream.drafters.training.medusa import MedusaShape
from slipstream.drafters.training.model import DRAFT, TARGET, Shape
from slipstream.models.types import LAST_HIDDEN


@dataclass(frozen=True)
class Family:
    """Shapes and budgets of everything that is trained; budgets are in tokens, so that they fit every machine."""

    target: Shape
    draft: Shape
    target_plan: Plan
    draft_plan: Plan
    heads_plan: Plan
    medusa_tokens: int
    kangaroo_tokens: int
    trial_tokens: int  # for each exit layer that Kangaroo tries
    eagle_tokens: int
    dflash_tokens: int
    mask_tokens: int
    tuned_tokens: int
    answer_tokens: int  # of the target's own replies, to train on
    held_answer_tokens: int  # of its greedy replies to held-out prompts, to measure on
    feature_tokens: int  # tokens whose hidden states are stored for training
    exits: tuple[int, ...]  # exit layers that Kangaroo tries
    medusa_shape: MedusaShape
    medusa_rows: int  # tokens of the heads' reduced vocabulary
    masks: int  # mask tokens of SPACE
    compiled: bool  # whether to use torch.compile
    own_text: bool  # whether to add the text that was written for the recipe

    def plan(self, tokens: int) -> Plan:
        """The plan of a set of heads with this budget."""
        return replace(self.heads_plan, tokens=tokens)

    @property
    def points(self) -> tuple[int, ...]:
        """All hidden points that heads read; the one after the last layer is first."""
        return (LAST_HIDDEN, *sorted({*self.exits, *low_middle_high(self.target.layers)}))


# the bundled models
BUNDLED = Family(
    target=TARGET,
    draft=DRAFT,
    target_plan=Plan(tokens=74_000_000, longer=((0.95, 1024), (0.99, 2048))),
    draft_plan=Plan(tokens=6_000_000, batch_tokens=4096, other_rate=6e-3, check_every=100),
    heads_plan=Plan(batch_tokens=4096, other_rate=1e-3, matrix_rate=0.01, decay_from=0.5, check_every=50),
    medusa_tokens=2_500_000,
    kangaroo_tokens=3_000_000,
    trial_tokens=1_000_000,
    eagle_tokens=1_500_000,
    dflash_tokens=4_000_000,
    mask_tokens=300_000,
    tuned_tokens=500_000,
    answer_tokens=700_000,
    held_answer_tokens=30_000,
    feature_tokens=1_200_000,
    exits=(1, 2, 3),
    medusa_shape=MedusaShape(TARGET.width),
    medusa_rows=2048,
    masks=3,
    compiled=True,
    own_text=True,
)

# the same recipe in a minute, to test it
TINY = Family(
    target=Shape(width=64, layers=4, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=512, context=256),
    draft=Shape(width=64, layers=1, heads=2, kv_heads=1, head_size=32, ffn=96, vocabulary=512, context=256),
    target_plan=Plan(tokens=400_000, batch_tokens=4096, longer=((0.8, 512),), check_every=20),
    draft_plan=Plan(tokens=150_000, batch_tokens=2048, other_rate=6e-3, check_every=20),
    heads_plan=Plan(batch_tokens=2048, other_rate=4e-3, check_every=20, warm_up_steps=10),
    medusa_tokens=150_000,
    kangaroo_tokens=150_000,
    trial_tokens=20_000,
    eagle_tokens=100_000,
    dflash_tokens=150_000,
    mask_tokens=60_000,
    tuned_tokens=60_000,
    answer_tokens=20_000,
    held_answer_tokens=3_000,
    feature_tokens=60_000,
    exits=(1, 2),
    medusa_shape=MedusaShape(64),
    medusa_rows=512,
    masks=2,
    compiled=False,
    own_text=False,
)
