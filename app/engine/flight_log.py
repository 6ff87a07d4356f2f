"""Makes the autopilot, and keeps what was learnt of this machine from one run to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Final

from slipstream.app.engine.arm import Record
from slipstream.app.engine.autopilot import Autopilot
from slipstream.app.engine.costs import Costs, measure_costs
from slipstream.app.engine.measuring import SAME_TEXT, measure_promise
from slipstream.app.engine.rehearsal import rehearse
from slipstream.app.engine.requests import AUTO
from slipstream.drafters.base import Drafter
from slipstream.drafters.memory import Memory
from slipstream.models.runtime.target import Target

COSTS: Final = "costs"
_PROMISE: Final = "promise"


class FlightLog:
    """What was measured of a target and its drafters, good for one machine and one build."""

    def __init__(self, memory: Memory | None, key: str) -> None:
        """Finds them.

        Args:
            memory: Where they are kept; None to keep nothing.
            key: Names the model, the build, the device and the settings that they are good for.
        """
        self._memory, self._key = memory, key

    def costs(self, target: Target, plain_ms: float) -> Costs:
        """The costs of passes: the kept ones if they still hold, else measured now.

        Args:
            target: Its cache is empty afterwards.
            plain_ms: Milliseconds of a pass of one row, now.
        """
        most = target.abilities.max_rows
        packed = self._memory.read(COSTS) if self._memory else None
        kept = Costs.load(packed, self._key, plain_ms, most) if packed else None
        if kept:
            return kept
        costs = measure_costs(target, plain_ms)
        if self._memory:
            self._memory.write(COSTS, costs.dump(self._key))
        return costs

    def promise(self, target: Target, plain_ms: float) -> str:
        """What may be promised of the text: "same text" where it was shown before, else what is measured now.

        Whether passes of all widths compute the same bits depends on model, build and device alone; a machine that is
        busy now has no time to show it.
        """
        proof = f"{SAME_TEXT} {self._key}".encode()
        if target.abilities.same_text and self._memory and self._memory.read(_PROMISE) == proof:
            return SAME_TEXT
        promise = measure_promise(target, plain_ms)
        if promise == SAME_TEXT and self._memory:
            self._memory.write(_PROMISE, proof)
        return promise

    def autopilot(
        self, drafters: Mapping[str, Drafter], target: Target, plain_ms: float, on_progress: Callable[[float], None]
    ) -> Autopilot:
        """Makes the autopilot, with the kept records of its drafters or the times that they take now."""
        costs = self.costs(target, plain_ms)
        on_progress(0.5)
        records = self._records()
        pilot = Autopilot(drafters, costs, target.abilities, known=bool(records))
        for arm in pilot.arms:
            arm.record = records.get(arm.name, arm.record)
        rehearse([arm for arm in pilot.arms if arm.name not in records], target, plain_ms)
        on_progress(1.0)
        return pilot

    def keep(self, pilot: Autopilot) -> None:
        """Writes the records down."""
        if self._memory:
            learnt = {arm.name: arm.record for arm in pilot.arms if arm.record.judged}
            records = self._records() | learnt  # of those that are left out now, what was learnt before
            kept = {"key": self._key, "arms": {name: asdict(record) for name, record in records.items()}}
            self._memory.write(AUTO, json.dumps(kept).encode())

    def _records(self) -> dict[str, Record]:
        packed = self._memory.read(AUTO) if self._memory else None
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged, or an older program's: learnt anew
            kept = json.loads(packed or b"{}")
            types = {field.name: type(getattr(Record(), field.name)) for field in fields(Record)}
            if kept["key"] == self._key:
                return {
                    name: Record(**{key: kind(values[key]) for key, kind in types.items()})
                    for name, values in kept["arms"].items()
                }
        return {}
