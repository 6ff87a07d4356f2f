"""Drafter ``auto``: a drafter over drafters that chooses at every step which of them drafts how much, if any.

policy: the drafter itself. active_set: the drafters that are called, and when an idle one is tried. arm: one of them,
with its record. cost_model: what a pass of the target takes. throughput: what steps took and brought. tree_pruning: the
nodes that pay. profile: what is kept between runs. settings: every tuned number.
"""

from typing import Final

AUTO: Final = "auto"
"""Name of the autopilot among the drafters."""
