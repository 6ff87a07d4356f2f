"""Several drafts of one step as one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.pruning import Part, Terms, best_part
from slipstream.drafters.merge import merged
from slipstream.models.types import Abilities

_MERGE_MS: Final = 2.0  # a pass must take so long before drafts are merged, which takes 0.1 ms


def best_together(best: Part, parts: Sequence[tuple[Arm, Part]], terms: Terms, abilities: Abilities, size: int) -> Part:
    """Merges what several drafted, where that is worth more than the best alone.

    Args:
        best: The part that is worth most.
        parts: The part of each that was asked.
        terms: What tokens and time are worth.
        abilities: Of the target.
        size: Tokens of the history.
    """
    drafted = [(arm, part.draft) for arm, part in parts if part.draft.tree.drafted and not part.draft.tree.probes]
    if len(drafted) < 2 or best.draft.tree.probes or terms.rows[1] < _MERGE_MS:
        return best
    drafts = [replace(draft, probs=tuple(arm.calibration.probs(draft))) for arm, draft in drafted]
    tree = merged(drafts, abilities, size)
    slower, trust = max(arm.record.slower for arm, _ in drafted), min(arm.trust for arm, _ in drafted)
    part = best_part(tree, tree.probs, terms, slower, trust)
    return part if part.value > best.value else best
