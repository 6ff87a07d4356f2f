"""How much faster the autopilot found each drafter of a model on this machine, from what it keeps between runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.app.engine.arm import Record
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.flight_log import COSTS
from slipstream.app.engine.requests import AUTO
from slipstream.drafters.memory import Memory

_JUDGED: Final = 32
"""Steps after which a record says something."""


def learnt_gains(derived: Path, fingerprint: str) -> dict[str, float]:
    """Speed over plain decoding by drafter, as its steps came out; empty where the autopilot has learnt nothing.

    Args:
        derived: The folder where it keeps what it learns.
        fingerprint: Of the model.
    """
    memory = Memory(derived, fingerprint)
    with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):  # damaged, or another version's
        packed, kept = memory.read(COSTS), json.loads(memory.read(AUTO) or b"{}")
        measured = json.loads(packed or b"{}")
        if packed and kept["key"] == measured["key"]:
            most = max(map(int, measured["short"]))
            costs = Costs.load(packed, measured["key"], float(measured["short"]["1"]), most)
            records = {name: Record(**values) for name, values in kept["arms"].items()}
            return {
                name: _gain(record, costs) for name, record in records.items() if record.judged >= _JUDGED and costs
            }
    return {}


def _gain(record: Record, costs: Costs) -> float:
    """Milliseconds of plain decoding for the tokens of a step, over those of the step."""
    low = min(int(record.rows), len(costs.rows) - 1)
    high = min(low + 1, len(costs.rows) - 1)
    verified = costs.rows[low] + (record.rows - low) * (costs.rows[high] - costs.rows[low])
    return record.tokens * costs.rows[1] / (record.slower * verified + record.draft_ms + record.hear_ms)
