"""Part ``predict``: the speed that is predicted for a model, against the speed that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from slipstream.app.bench.report import table
from slipstream.app.bench.turns import BenchTurn, ReplyPlan, session_of, write
from slipstream.app.library.format import at_most
from slipstream.app.protocol.requests import PLAIN, Load, Sampling
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.devices import devices
from slipstream.models.memory.fit import fit
from slipstream.models.memory.speed import Bandwidth, Prediction, bandwidth, bytes_read, predict


@dataclass(frozen=True, slots=True)
class PredictFigures:
    """One model."""

    model: str
    read_mb: float  # megabytes of weights that a token reads
    prediction: Prediction | None  # None where nothing could be predicted
    plain: list[float]  # tokens a second of each reply, without a drafter
    machine: list[Bandwidth]

    @property
    def share(self) -> float | None:
        """The median of what was measured, as a share of the prediction, which is an upper limit."""
        return median(self.plain) / self.prediction.tok_per_s if self.prediction else None


def compare_prediction(request: Load, plan: ReplyPlan, tell: Callable[[str], None]) -> PredictFigures:
    """Predicts, then writes the replies of a plan without a drafter.

    Raises:
        SlipstreamError: If the model cannot be loaded.
    """
    header = read_header(Path(request.model))
    tell("predict: this machine")
    machine, read = bandwidth(), sum(bytes_read(header).values())
    prediction = predict(read, fit(header, devices()), machine)
    found = list[float]()
    with session_of(request) as (session, loaded):
        for kind in plan.sets:
            for at, prompt in enumerate(kind.prompts):
                turn = BenchTurn(
                    kind.name, at, 0, prompt.messages, Sampling(plan.temperatures[-1], seed=1), plan.tokens
                )
                tell(f"predict: {loaded.name}, {turn.place}")
                found.append(write(session, PLAIN, turn).done.speed.tok_per_s)
    return PredictFigures(loaded.name, read / 1e6, prediction, found, machine)


def predict_text(figures: PredictFigures) -> str:
    """The prediction beside what was measured."""
    found, speeds = figures.prediction, figures.plain
    row = (
        figures.model,
        f"{figures.read_mb:.0f}",
        at_most(found.tok_per_s, found.basis != "busy") if found else "-",
        f"{median(speeds):.1f} ({min(speeds):.1f}..{max(speeds):.1f})",
        f"{figures.share:.0%}" if figures.share else "-",
    )
    return table(
        "predict: tokens a second without a drafter as predicted, and as measured (median over replies)",
        ("model", "MB a token", "predicted", "measured", "share"),
        [row],
    )
