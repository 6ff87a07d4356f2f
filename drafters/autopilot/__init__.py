"""Drafter ``auto``: chooses for every step which drafter drafts, if any, and how many of its nodes are verified.

policy: the drafter itself. active_set: the drafters that are called, and the trials of idle ones. arm: one drafter with
its record. cost_model: the time of a pass of the target. throughput: time and tokens of the steps. tree_pruning: the
nodes that pay. profile: what is kept between runs. settings: every tuned number.
"""

from typing import Final

AUTO: Final = "auto"
"""Name of the autopilot among the drafters."""
