"""Makes the autopilot, and keeps measurements of a target and its drafters from one run to the next."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from time import perf_counter
from typing import Any, Final

from slipstream.drafters.autopilot import AUTO, settings
from slipstream.drafters.autopilot.arm import Arm, ArmRecord
from slipstream.drafters.autopilot.cost_model import DAMAGED, CostModel, measure_costs
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import NO_DRAFT, Drafter, Step
from slipstream.drafters.calibration import Ratio
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.llama.library import process_log
from slipstream.models.llama.target import PrefillChunk, Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, History, Token

_COSTS: Final = "costs"


class Profile:
    """Stored measurements of a target and its drafters, valid for one machine and one build."""

    def __init__(self, memory: DrafterMemory | None, key: str, text: Sequence[Token] = ()) -> None:
        """Measures nothing yet.

        Args:
            key: Names the model, the build, the device and the settings for which they are valid.
        """
        self._memory, self._key, self._text = memory, key, text

    def autopilot(
        self, drafters: Mapping[str, Drafter], target: Target, plain_ms: float, on_progress: Callable[[float], None]
    ) -> Autopilot:
        """Makes the autopilot, and measures the costs and drafters that are not known yet.

        Args:
            drafters: By name; the autopilot closes them.
            target: Its cache is empty afterwards.
            plain_ms: Milliseconds of a pass of one row, now.
        """
        costs = self._costs(target, plain_ms)
        on_progress(0.5)
        records = self._records()
        pilot = Autopilot(drafters, costs, target.abilities, known=bool(records))
        for arm in pilot.arms:
            decay, arm.record = arm.record.outcomes.decay, records.get(arm.name, arm.record)
            arm.record.outcomes.decay = decay
        warm_up([arm for arm in pilot.arms if arm.name not in records], target, plain_ms)
        on_progress(1.0)
        return pilot

    def keep(self, pilot: Autopilot) -> None:
        """Writes the records, and the share of passes that were replayed; disabled drafters keep their stored ones."""
        if self._memory:
            records = self._records() | {arm.name: arm.record for arm in pilot.arms if arm.record.judged}
            passes, arms = process_log().passes, {name: asdict(record) for name, record in records.items()}
            kept = {"key": self._key, "arms": arms, "replayed": passes.replayed / max(passes.total, 1)}
            self._memory.write(AUTO, json.dumps(kept).encode())

    def _costs(self, target: Target, plain_ms: float) -> CostModel:
        packed = self._memory.read(_COSTS) if self._memory else None
        most, widths = target.abilities.max_rows, target.abilities.widths
        kept = CostModel.load(packed, self._key, plain_ms, most, widths) if packed else None
        if kept:
            return kept
        costs = measure_costs(target, plain_ms, text=self._text)
        if self._memory:
            self._memory.write(_COSTS, costs.dump(self._key))
        return costs

    def _records(self) -> dict[str, ArmRecord]:
        with suppress(*DAMAGED):
            kept = json.loads((self._memory.read(AUTO) if self._memory else None) or b"{}")
            if kept["key"] == self._key:
                return {name: _record(values) for name, values in kept["arms"].items()}
        return {}


def measured_costs(memory: DrafterMemory) -> dict[int, float]:
    """The stored times of passes by their rows, in plain passes; empty if nothing is stored."""
    with suppress(*DAMAGED):
        short = json.loads(memory.read(_COSTS) or b"{}")["short"]
        return {int(rows): float(ms) / float(short["1"]) for rows, ms in short.items()}
    return {}


def learned_gains(memory: DrafterMemory) -> dict[str, float]:
    """Each drafter's speed relative to plain decoding, by the stored records; empty if no record is long enough."""
    with suppress(*DAMAGED):
        packed, kept = memory.read(_COSTS), json.loads(memory.read(AUTO) or b"{}")
        measured = json.loads(packed or b"{}")
        if packed and kept["key"] == measured["key"]:
            most = max(map(int, measured["short"]))
            costs = CostModel.load(packed, measured["key"], float(measured["short"]["1"]), most)
            records = {name: _record(values) for name, values in kept["arms"].items()}
            known = {name: record for name, record in records.items() if record.judged >= settings.JUDGED}
            return {name: _gain(record, costs) for name, record in known.items()} if costs else {}
    return {}


def _gain(record: ArmRecord, costs: CostModel) -> float:
    """The time that plain decoding takes for a step's tokens, over the time of the step."""
    low = min(int(record.rows), len(costs.rows) - 1)
    high = min(low + 1, len(costs.rows) - 1)
    verified = costs.rows[low] + (record.rows - low) * (costs.rows[high] - costs.rows[low])
    return record.tokens * costs.rows[1] / (record.slower * verified + record.draft_ms + record.observe_ms)


def _record(packed: Mapping[str, Any]) -> ArmRecord:
    record, sums = ArmRecord(), packed["outcomes"]
    outcomes = Ratio(record.outcomes.decay, float(sums["observed"]), float(sums["expected"]))
    numbers = {name: type(value)(packed[name]) for name, value in asdict(record).items() if name != "outcomes"}
    return ArmRecord(outcomes=outcomes, **numbers)


def warm_up(arms: Sequence[Arm], target: Target, plain_ms: float, clock: Callable[[], float] = perf_counter) -> None:
    """Calls unmeasured drafters a few times, and discards their drafts.

    The first calls take longest: they read weights from the disk and allocate buffers. So no reply waits for them.

    Args:
        arms: The drafters; they hold no text afterwards.
        target: The target that they draft for; its cache is empty afterwards.
        plain_ms: Milliseconds of a pass of one row. No drafter is called after half a second and ten such passes; what
            hidden states add to a pass is measured in any case, since a drafter that seems to be free is tried first.
        clock: Time in seconds.
    """
    until = clock() + (settings.MEASURE_SECONDS + settings.MEASURE_PASSES * plain_ms / 1e3) / 2
    length = min(settings.WARMUP_TOKENS, target.abilities.n_ctx // 2)
    for arm in arms:
        if not arm.hidden and clock() < until:
            for first in (2, 1):  # the first text takes longer
                history = History(_text(first, length))
                _begin(arm, history)
                arm.drafter.draft(history, arm.limits, Sampler())
            for deepest in settings.WARMUP_DEPTHS:
                arm.draft(history, Sampler(), 0, deepest)
    try:
        _warm_up_hidden([arm for arm in arms if arm.hidden], target, plain_ms, until, clock)
    finally:
        target.request(frozenset())
        target.rewind(0)
    for arm in arms:
        arm.drafter.rewind(0)
        arm.deactivate()


def _warm_up_hidden(
    arms: Sequence[Arm], target: Target, plain_ms: float, until: float, clock: Callable[[], float]
) -> None:
    """Warms up drafters that need hidden states, with those that passes of the target return."""
    rows = settings.WARMUP_PREFILL + 2 * len(settings.WARMUP_DEPTHS)
    if not arms or rows > target.abilities.n_ctx:
        return
    history = History(_text(1, settings.WARMUP_PREFILL))
    for arm in arms:
        _begin(arm, history)

    def on_chunk(chunk: PrefillChunk) -> None:
        for arm in arms:
            arm.drafter.on_prefill(chunk.tokens, chunk.hidden)

    points = frozenset[int]().union(*(arm.drafter.needs.hidden for arm in arms))
    if not points:
        return  # all of them failed as they began
    target.request(points)
    target.prefill(history.tokens[:-1], on_chunk)
    for at, deepest in enumerate((1, *settings.WARMUP_DEPTHS)):
        began = clock()
        evaluation = target.evaluate(history.tokens[-1], EMPTY_TREE)
        target.keep(())
        longer = max(0.0, 1e3 * (clock() - began) / plain_ms - 1) / len(points)
        history.tokens.append(_text(3, 1 + at)[at])
        step = Step(NO_DRAFT, (), (history.tokens[-1],), evaluation)
        for arm in arms:
            slower = 1 + longer * len(arm.drafter.needs.hidden)
            arm.record.slower = min(arm.record.slower, slower) if at > 1 else slower  # the first passes take longer
        for arm in arms:
            if clock() > until:
                break
            arm.observe(history, step)
            if at:
                arm.draft(history, Sampler(), 0, deepest)
            else:
                arm.drafter.draft(history, arm.limits, Sampler())  # takes longer
        if at > 1 and clock() > until:
            return


def _begin(arm: Arm, history: History) -> None:
    arm.limits.least, arm.limits.deepest = 0.0, 2
    arm.begin()
    arm.activate(history)


def _text(first: Token, length: int) -> list[Token]:
    return [first + at % 7 for at in range(length)]
