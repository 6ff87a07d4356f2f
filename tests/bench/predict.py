"""Part ``predict``: the speed that is predicted for a model, against the speed that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from slipstream.app.bench.plan import Plan
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import Turn, session_of, write
from slipstream.app.library.format import rates
from slipstream.app.protocol.requests import AUTO, PLAIN, Load, Sampling
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.devices import devices
from slipstream.models.llama.throughput import Throughput, throughput
from slipstream.models.memory.fit import fit
from slipstream.models.memory.speed import Prediction, predict, reads_of


@dataclass(frozen=True, slots=True)
class PredictFigures:
    """One model.

    Attributes:
        model: Its name.
        read_mb: Megabytes of weights that a pass over one token reads.
        prediction: What was predicted; None where it could not be.
        plain: Tokens a second without a drafter: of each reply.
        drafted: The same with the autopilot.
        machine: What was measured of the machine.
    """

    model: str
    read_mb: float
    prediction: Prediction | None
    plain: list[float]
    drafted: list[float]
    machine: list[Throughput]

    @property
    def holds(self) -> tuple[bool, bool]:
        """Whether the ranges hold the medians of what was measured: without a drafter, and with one."""
        if self.prediction is None:
            return False, False
        ranges = ((self.prediction.plain, self.plain), (self.prediction.drafted, self.drafted))
        plain, drafted = (each.low <= median(found) <= each.high for each, found in ranges)
        return plain, drafted


def compare_prediction(request: Load, plan: Plan, tell: Callable[[str], None]) -> PredictFigures:
    """Predicts, then writes the replies of a plan without a drafter and with the autopilot, in turns.

    Raises:
        SlipstreamError: If the model cannot be loaded.
    """
    header = read_header(Path(request.model))
    tell("predict: this machine")
    machine, reads = throughput(), reads_of(header)
    prediction = predict(reads, fit(header, devices()), machine)
    speeds: dict[str, list[float]] = {PLAIN: [], AUTO: []}
    with session_of(request) as (session, loaded):
        for kind in plan.sets:
            for at, prompt in enumerate(kind.prompts):
                turn = Turn(kind.name, at, 0, prompt.messages, Sampling(plan.temperatures[-1], seed=1), plan.tokens)
                for name, found in speeds.items():
                    tell(f"predict: {loaded.name}, {turn.place}, {name}")
                    found.append(write(session, name, turn).done.speed.tok_per_s)
    return PredictFigures(loaded.name, reads.active / 1e6, prediction, speeds[PLAIN], speeds[AUTO], machine)


def predict_text(figures: PredictFigures) -> str:
    """The prediction beside what was measured."""
    found = figures.prediction
    rows = []
    for name, speeds, held in (
        ("none", figures.plain, figures.holds[0]),
        ("auto", figures.drafted, figures.holds[1]),
    ):
        said = (found.plain if name == "none" else found.drafted) if found else None
        rows.append(
            (
                figures.model,
                f"{figures.read_mb:.0f}",
                name,
                rates(said.low, said.high) if said else "-",
                f"{median(speeds):.1f} ({min(speeds):.1f}..{max(speeds):.1f})",
                "yes" if held else "NO",
            )
        )
    return table(
        "predict: tokens a second as predicted, and as measured (median over replies)",
        ("model", "MB a token", "drafter", "predicted", "measured", "held"),
        rows,
    )
